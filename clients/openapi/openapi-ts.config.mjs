// Imports have the extension that Node.js needs.
export default {
  output: { module: { extension: ".js" } },
};
