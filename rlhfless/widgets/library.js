// Runs the plotly.js that the kernel sent, once per page. Knows the model of rlhfless.widgets.plotly_js; nothing of figures.

const LIBRARIES = (globalThis[Symbol.for("rlhfless.plotly")] ||= new Map());  // SHA-256 -> Plotly, as a promise

const hex = (digest) => [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// Plotly, or an Error with a sentence. `source` is the model; who asks first runs it, others on the page wait for the same.
function plotlyOf(source) {
  const hash = source.get("sha256");
  if (!LIBRARIES.has(hash)) {
    const made = run(source, hash);
    LIBRARIES.set(hash, made);
    made.catch(() => LIBRARIES.delete(hash));
  }
  return LIBRARIES.get(hash);
}

async function run(source, hash) {
  if (source.get("problem")) throw new Error(source.get("problem"));
  const code = source.get("code");
  if (!code || !code.byteLength) throw new Error("The kernel sent no plotly.js.");
  const subtle = globalThis.crypto && crypto.subtle;  // absent on pages that are neither local nor encrypted
  if (subtle && hex(await subtle.digest("SHA-256", code)) !== hash)
    throw new Error("The plotly.js that arrived has another SHA-256 than the one that was sent.");
  const head = "const module = {exports: {}}, exports = module.exports;\n", tail = "\nexport default module.exports;";
  const url = URL.createObjectURL(new Blob([head, code, tail], {type: "text/javascript"}));
  const before = Object.getOwnPropertyDescriptor(globalThis, "Plotly");
  try {
    return (await import(url)).default;
  } finally {
    URL.revokeObjectURL(url);
    delete globalThis.Plotly;  // the bundle names itself so; the page may have a Plotly of its own
    if (before) Object.defineProperty(globalThis, "Plotly", before);
  }
}
