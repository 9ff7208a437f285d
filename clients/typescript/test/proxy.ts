import { Agent, createServer, request as httpRequest, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/**
 * A round-robin load balancer without health checks: each request goes to the next server. If that one is down, or dies before it
 * answers, the answer is 502, so that clients have to repeat.
 */
export class RoundRobinProxy {
  /** Requests so far. */
  requests = 0;
  /** Answers with status 502 so far. */
  badGateways = 0;
  readonly #upstreams: readonly string[];
  readonly #agent = new Agent({ keepAlive: true });
  readonly #server: Server;

  private constructor(upstreams: readonly string[]) {
    this.#upstreams = upstreams;
    this.#server = createServer((request, response) => this.#forward(request, response));
  }

  /** Starts a proxy of these servers on a free port. */
  static async start(upstreams: readonly string[]): Promise<RoundRobinProxy> {
    const proxy = new RoundRobinProxy(upstreams);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  /** Address of the proxy. */
  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Ends all connections. */
  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
    this.#agent.destroy();
  }

  #forward(request: IncomingMessage, response: ServerResponse): void {
    const upstream = this.#upstreams[this.requests % this.#upstreams.length] ?? "";
    this.requests += 1;
    const options = { agent: this.#agent, method: request.method, headers: request.headers };
    const forwarded = httpRequest(upstream + request.url, options, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.on("error", () => response.destroy());
      answer.pipe(response);
    });
    forwarded.on("error", () => {
      if (response.headersSent) return response.destroy();
      this.badGateways += 1;
      response.writeHead(502, { "content-type": "text/plain" }).end("the server did not answer\n");
    });
    // A consumer that leaves a long poll gives its event back.
    response.on("close", () => response.writableFinished || forwarded.destroy());
    request.pipe(forwarded);
  }
}
