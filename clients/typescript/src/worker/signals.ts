const STOP_SIGNALS = ["SIGTERM", "SIGINT"];

interface Process {
  once(signal: string, listener: () => void): unknown;
  removeListener(signal: string, listener: () => void): unknown;
}

/** Calls `stop` on the first SIGTERM or SIGINT; the second one ends the process as usual. Returns how to undo it. */
export function onStopSignals(stop: () => void): () => void {
  const process = (globalThis as { process?: Partial<Process> }).process;
  if (typeof process?.once !== "function" || typeof process.removeListener !== "function") return () => undefined;
  const { removeListener } = process;
  const forget = () => STOP_SIGNALS.forEach((signal) => removeListener.call(process, signal, onSignal));
  const onSignal = () => {
    forget();
    stop();
  };
  for (const signal of STOP_SIGNALS) process.once(signal, onSignal);
  return forget;
}
