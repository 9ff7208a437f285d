/** Helpers for tests: a real server on a temporary file, and time that a test advances by hand. */
export { FakeClock } from "./fake_clock.js";
export { RedriveTestServer, type TestServerOptions } from "./server.js";
