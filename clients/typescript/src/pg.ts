/** Publishes in your own PostgreSQL transaction: SQL and arguments of the function `redrive.publish`. */
import { payloadToJson } from "./json.js";
import type { PublishEvent } from "./types/events.js";

/** An event to publish by SQL. Retry overrides are not possible there. */
export type SqlEvent<T = unknown> = Omit<PublishEvent<T>, "retry" | "delay_ms" | "due_at"> & {
  /** The event is not handled before this time. */
  due_at?: Date | string | null | undefined;
};

/** Options of the SQL helpers. */
export interface SqlOptions {
  /** Schema of Redrive's tables; `redrive` by default. */
  schema?: string | undefined;
}

/** A query with numbered parameters, as `pg` takes it. */
export interface SqlQuery {
  text: string;
  values: (string | null)[];
}

/** The parts of a tagged template: the texts, and the values between them. */
export type SqlTemplate = [strings: TemplateStringsArray, ...values: (string | null)[]];

/** Types of the arguments. Each is sent as text first, which every driver can do. */
const CASTS = ["text", "text::json", "text::uuid", "text::json", "text::timestamptz"];

/**
 * Returns the query that publishes an event, for `pg`. It returns one row with the column `id`.
 *
 * ```ts
 * await client.query("BEGIN");
 * await client.query("UPDATE account SET cents = cents - 100 WHERE id = 7");
 * await client.query(publishQuery({ type: "account.debited", payload: { account: 7, cents: 100 } }));
 * await client.query("COMMIT");
 * ```
 */
export function publishQuery<T>(event: SqlEvent<T>, options: SqlOptions = {}): SqlQuery {
  const args = CASTS.map((cast, index) => `$${index + 1}::${cast}`).join(", ");
  return { text: `SELECT ${functionName(options)}(${args}) AS id`, values: valuesOf(event) };
}

/**
 * Returns the query as the arguments of a tag of SQL templates: of Drizzle (`sql`), Prisma (`$queryRaw`, `Prisma.sql`) and others.
 *
 * ```ts
 * await tx.execute(sql(...publishTemplate({ type: "account.debited", payload: { account: 7 } }))); // Drizzle
 * await tx.$queryRaw(...publishTemplate({ type: "account.debited", payload: { account: 7 } })); // Prisma
 * ```
 */
export function publishTemplate<T>(event: SqlEvent<T>, options: SqlOptions = {}): SqlTemplate {
  const texts = [`SELECT ${functionName(options)}(`, ...CASTS.map((cast, index) => `::${cast}${index === CASTS.length - 1 ? ") AS id" : ", "}`)];
  return [Object.freeze(Object.assign(texts, { raw: Object.freeze([...texts]) })), ...valuesOf(event)];
}

function functionName({ schema = "redrive" }: SqlOptions): string {
  // Quoted only if needed: PostgreSQL folds plain names to lower case.
  if (/^[a-z_][a-z0-9_]*$/.test(schema)) return `${schema}.publish`;
  if (schema === "" || schema.includes("\0")) throw new TypeError(`${JSON.stringify(schema)} is not the name of a schema`);
  return `"${schema.replace(/"/g, '""')}".publish`;
}

function valuesOf<T>(event: SqlEvent<T>): (string | null)[] {
  const due = event.due_at instanceof Date ? event.due_at.toISOString() : (event.due_at ?? null);
  const metadata = event.metadata === undefined ? null : JSON.stringify(event.metadata);
  return [event.type, payloadToJson(event.payload), event.id ?? null, metadata, due];
}
