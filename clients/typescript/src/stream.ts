import { NetworkError } from "./errors.js";
import { readJson } from "./http.js";
import type { EventNotice, StreamMessage } from "./types/events.js";

/** Longest message of a stream, in characters. */
const MAX_MESSAGE_CHARS = 1 << 20;

interface ByteReader {
  read(): Promise<{ done: boolean; value?: Uint8Array | undefined }>;
  cancel(): Promise<void>;
}

/** Reads server-sent events from the body of a response, one by one. */
export async function* readMessages(body: unknown): AsyncGenerator<StreamMessage, void, undefined> {
  const reader = (body as { getReader(): ByteReader }).getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  try {
    for (;;) {
      const end = buffer.indexOf("\n\n");
      if (end >= 0) {
        const message = parse(buffer.slice(0, end));
        buffer = buffer.slice(end + 2);
        if (message) yield message;
        continue;
      }
      if (buffer.length > MAX_MESSAGE_CHARS) {
        throw new NetworkError({ code: "unexpected_response", detail: "a message of the stream is too long" });
      }
      const { done, value } = await reader.read();
      if (done) return;
      buffer += decoder.decode(value, { stream: true });
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** Reads one message; `undefined` for a comment. */
function parse(text: string): StreamMessage | undefined {
  const field = (name: string) =>
    text
      .split("\n")
      .find((line) => line.startsWith(name))
      ?.slice(name.length)
      .trim();
  const [kind, data] = [field("event:"), field("data:")];
  if (kind === undefined || data === undefined) return undefined;
  if (kind === "lagged") return { kind, missed: readJson<{ missed: number | null }>(data).missed ?? null };
  if (kind === "end") return { kind, reason: readJson<{ reason: string }>(data).reason };
  return { kind, event: readJson<EventNotice>(data) };
}
