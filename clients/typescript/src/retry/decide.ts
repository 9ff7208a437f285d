import { exactDelay, exactRange, type Backoff } from "./backoff.js";

/** Class of a failure. Every class but `permanent` is retried. `throttled` may name the wait that the destination asked for. */
export type FailureClass =
  | "transient"
  | "timeout"
  | "permanent"
  | "crashed"
  | { throttled: { retry_after_ms?: number | bigint | null } };

/** Outcome of an attempt. `refused` was not made: the circuit is open or the budget is spent. */
export type Outcome = "succeeded" | "refused" | { failed: FailureClass };

/** State of a circuit breaker. */
export type BreakerSnapshot = "closed" | { open: { until: number } } | { half_open: { until: number } };

/** State of a retry budget. */
export type BudgetSnapshot = "unlimited" | "granted" | { spent: { again_at?: number | null } };

/** Inputs of a decision, as decision records have them. Times are milliseconds since the Unix epoch. */
export interface Situation {
  /** Largest number of attempts. */
  max_attempts: number;
  backoff: Backoff;
  /** Time limit of all attempts and delays together. */
  deadline_ms?: number | null;
  /** Number of the attempt that has ended or was refused, from 1. */
  attempt: number;
  outcome: Outcome;
  /** Start of the first attempt. */
  started_at: number;
  /** Time of the decision. */
  now: number;
  breaker?: BreakerSnapshot;
  budget?: BudgetSnapshot;
  /** Seed of the jitter, an unsigned 64-bit number. */
  seed: number | bigint;
  /** Event id, or id of a call. */
  event: string;
  /** Subscription name, or operation of a call. */
  subscription: string;
}

/** Next step after an attempt: done, another attempt, a wait that charges no attempt, or the end. */
export type Decision =
  | { action: "done" }
  | { action: "retry"; at: number; delay_ms: number; because: "backoff" | "retry_after" | "circuit_open" }
  | { action: "park"; until: number; because: "circuit_open" | "budget_spent" }
  | {
      action: "dead";
      because: "permanent" | "attempts_exhausted" | "deadline_exceeded" | "budget_spent" | "wait_too_long";
    };

/** Longest wait that a destination may ask for: a leap year. */
const MAX_WAIT_MS = 366n * 86_400_000n;

/** Decides the next step after an attempt. Pure: equal situations give equal decisions, the same as those of the server. */
export function decide(situation: Situation): Decision {
  const { outcome, now } = situation;
  if (outcome === "succeeded") return { action: "done" };
  if (outcome === "refused") {
    const circuit = Math.max(refusesUntil(situation.breaker) ?? now, now);
    const budget = spentUntil(situation.budget);
    return typeof budget === "number" && budget > circuit
      ? park(situation, budget, "budget_spent")
      : park(situation, circuit, "circuit_open");
  }
  return afterFailure(situation, outcome.failed);
}

function afterFailure(situation: Situation, failure: FailureClass): Decision {
  const { attempt, backoff, now } = situation;
  if (failure === "permanent") return { action: "dead", because: "permanent" };
  if (attempt >= situation.max_attempts) return { action: "dead", because: "attempts_exhausted" };
  const budget = spentUntil(situation.budget);
  if (budget === null) return { action: "dead", because: "budget_spent" };
  if (budget !== undefined) return park(situation, budget, "budget_spent");
  // The wait that the destination asked for and the open time of the circuit are minimums; jitter applies above them.
  const requested = BigInt((typeof failure === "object" && failure.throttled.retry_after_ms) || 0);
  const circuit = BigInt(Math.max(0, (refusesUntil(situation.breaker) ?? now) - now));
  if (requested > MAX_WAIT_MS) return { action: "dead", because: "wait_too_long" };
  const minimum = requested > circuit ? requested : circuit;
  const delay = Number(exactDelay(backoff, attempt + 1, minimum, situation));
  const because =
    minimum <= exactRange(backoff, attempt + 1)[0] ? "backoff" : circuit >= requested ? "circuit_open" : "retry_after";
  const at = now + delay;
  if (exceedsDeadline(situation, at)) return { action: "dead", because: "deadline_exceeded" };
  return { action: "retry", at, delay_ms: delay, because };
}

function park(situation: Situation, until: number, because: "circuit_open" | "budget_spent"): Decision {
  if (exceedsDeadline(situation, until)) return { action: "dead", because: "deadline_exceeded" };
  return { action: "park", until, because };
}

function exceedsDeadline({ deadline_ms, started_at }: Situation, at: number): boolean {
  return deadline_ms != null && at >= started_at + deadline_ms;
}

/** Until when the circuit refuses calls; `undefined` if it is closed. */
function refusesUntil(breaker: BreakerSnapshot = "closed"): number | undefined {
  if (breaker === "closed") return undefined;
  return "open" in breaker ? breaker.open.until : breaker.half_open.until;
}

/** Until when the budget is spent; `null` without an end, `undefined` if it is not spent. */
function spentUntil(budget: BudgetSnapshot = "unlimited"): number | null | undefined {
  return typeof budget === "string" ? undefined : (budget.spent.again_at ?? null);
}
