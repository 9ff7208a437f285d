export type * from "./admin.js";
export type * from "./common.js";
export type * from "./dlq.js";
export type * from "./endpoints.js";
export type * from "./events.js";
export type * from "./subscriptions.js";
