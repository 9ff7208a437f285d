/** Compares the types of `src/types` with the API document. */
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import ts from "typescript";
import { packageFolder } from "./support.js";

interface Schema {
  properties?: Record<string, unknown>;
  allOf?: Schema[];
  $ref?: string;
  enum?: string[];
  "x-extensible-enum"?: string[];
}

const document = JSON.parse(readFileSync(`${packageFolder}../../docs/openapi.json`, "utf8")) as { components: { schemas: Record<string, Schema> } };
const { schemas } = document.components;

/** Interfaces of the client's own, and of query parameters, which the document does not name. */
const UNDOCUMENTED = new Set(["Page", "List", "PageQuery", "CallOptions", "PublishOptions", "EventFilter", "EventNotice"]);

test("the interfaces have the fields of the API document", () => {
  const interfaces = readInterfaces();
  const differences: string[] = [];
  for (const [name, fields] of interfaces) {
    if (UNDOCUMENTED.has(name)) continue;
    // `dry_run` decides the type of the response: the client has two methods instead.
    const documented = fieldsOf(schemas[name]).filter((field) => !(name === "BeginReplay" && field === "dry_run"));
    if (documented.join() !== fields.join()) differences.push(`${name}: ${fields.join()} instead of ${documented.join()}`);
  }
  assert.ok(interfaces.size > 35);
  assert.deepEqual(differences, []);
});

test("the unions have the values of the API document", () => {
  let compared = 0;
  for (const [name, values] of readUnions()) {
    const documented = schemas[name]?.enum ?? schemas[name]?.["x-extensible-enum"];
    if (!documented) continue;
    assert.deepEqual(values, documented, name);
    compared += 1;
  }
  assert.ok(compared >= 7, `${compared} unions were compared`);
});

function fieldsOf(schema: Schema | undefined): string[] {
  if (schema?.$ref) return fieldsOf(schemas[schema.$ref.replace(/^.*\//, "")]);
  return [...Object.keys(schema?.properties ?? {}), ...(schema?.allOf ?? []).flatMap(fieldsOf)].sort();
}

function readNodes(): ts.Node[] {
  const folder = `${packageFolder}src/types/`;
  return readdirSync(folder).flatMap((file) => {
    const source = ts.createSourceFile(file, readFileSync(folder + file, "utf8"), ts.ScriptTarget.ES2022);
    return [...source.statements];
  });
}

/** Reads the fields of every interface, inherited ones included. */
function readInterfaces(): Map<string, string[]> {
  const found = new Map<string, { fields: string[]; parents: string[] }>();
  for (const node of readNodes()) {
    if (!ts.isInterfaceDeclaration(node)) continue;
    const fields = node.members.map((member) => (member.name as ts.Identifier).text);
    const parents = (node.heritageClauses ?? []).flatMap(({ types }) => types.map(({ expression }) => (expression as ts.Identifier).text));
    found.set(node.name.text, { fields, parents });
  }
  const all = (name: string): string[] => [...(found.get(name)?.fields ?? []), ...(found.get(name)?.parents ?? []).flatMap(all)];
  return new Map([...found.keys()].map((name) => [name, all(name).sort()]));
}

/** Reads the values of every type `Open<"a" | "b">`. */
function readUnions(): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const node of readNodes()) {
    if (!ts.isTypeAliasDeclaration(node) || !ts.isTypeReferenceNode(node.type)) continue;
    const [union] = node.type.typeArguments ?? [];
    if (!union || !ts.isUnionTypeNode(union)) continue;
    const values = union.types.flatMap((type) => (ts.isLiteralTypeNode(type) && ts.isStringLiteral(type.literal) ? [type.literal.text] : []));
    found.set(node.name.text, values);
  }
  return found;
}
