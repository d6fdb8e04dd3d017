const CONFIG = {
  responsive: true, displaylogo: false, showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 640px)");
let FIGURES = {};  // JSON of plotly by the id of the element: one or several to choose from
const drawn = new Set();  // ids, as the page is now
const wanted = new Map(), busy = new Set();  // ids with the name of what is to be drawn next; ids that are being drawn
const LINE = 18, TITLE_LETTER = 8.8, SUBTITLE_LETTER = 6.5, NAME = 108, BESIDE = 600, AXIS = 60, WIDEST = 760, LEAST = 280;  // px
// A title in lines that are not wider than the figure, and how many lines were added. Tags stay as they are.
function wrapped(text, width) {
  let used = 0, letter = TITLE_LETTER, space = "", lines = 0, made = "";
  for (const part of text.split(/(<[^>]*>| )/)) {
    if (part.startsWith("<br")) { used = 0; letter = SUBTITLE_LETTER; space = ""; made += part; }
    else if (part.startsWith("<")) made += part;
    else if (part === " ") space = " ";
    else if (part) {
      if (space && used + (part.length + 1) * letter > width) { made += "<br>"; used = 0; lines += 1; }
      else { made += space; used += space.length * letter; }
      made += part; used += part.length * letter; space = "";
    }
  }
  return [made, lines];
}
// How wide the longest line of a text is, without its tags.
function lineWidth(text) {
  return SUBTITLE_LETTER * Math.max(...text.split("<br>").map((line) => line.replace(/<[^>]*>/g, "").length));
}
// How wide a figure must be (px) that has plots beside each other, names below an axis or beside points that would overlap, or
// headings of panels that would be cut off; else 0.
function widthNeeded(layout) {
  const axes = Object.keys(layout).filter((key) => key.startsWith("xaxis")).map((key) => layout[key]);
  const names = Math.max(0, ...axes.map((axis) => (axis.ticktext || axis.categoryarray || []).length));
  const notes = layout.annotations || [], headings = notes.filter((one) => one.yref === "paper" && !one.showarrow && one.y > 0);
  const heading = Math.max(0, ...headings.map((one) => layout.margin.l + AXIS + lineWidth(one.text)));
  const beside = notes.some((one) => one.name === "policy") || axes.some((axis) => (axis.domain || [0])[0] > 0.05);
  return Math.max(names > 4 ? names * NAME : 0, beside ? BESIDE : 0, heading > BESIDE ? Math.min(heading, WIDEST) : 0);
}
// What plotly takes where a figure does not say it.
const BARE = {height: 450, title: {text: ""}, margin: {t: 100, b: 80}};
// A title that is wider than the figure is wrapped, also that of an axis. On a narrow screen the legend stands below it: beside the plot it would cover
// the plot. A figure that needs room keeps its width, and its frame scrolls. None is narrower than plotly can draw, as a window may be
// one pixel wide for a moment, or for as long as it is hidden.
async function drawNow(id, name) {
  const div = document.getElementById(id), spec = FIGURES[id][name], small = narrow.matches;
  const colour = getComputedStyle(document.body).color;
  const layout = {...BARE, ...spec.layout, margin: {...BARE.margin, ...spec.layout.margin},
    font: {...spec.layout.font, color: colour}, paper_bgcolor: "rgba(0,0,0,0)", autosize: true};
  let top = layout.margin.t;
  div.style.minWidth = Math.max(LEAST, small ? widthNeeded(layout) : 0) + "px";
  const [text, lines] = wrapped(layout.title.text || "", Math.max(LEAST, div.parentElement.clientWidth) - 28);
  if (lines) {
    top += lines * LINE;
    layout.height += lines * LINE;
    layout.title = {...layout.title, text};
    layout.margin = {...layout.margin, t: top};
  }
  for (const key of Object.keys(layout).filter((one) => one.startsWith("xaxis") && layout[one].title)) {
    const [name, added] = wrapped(layout[key].title.text || "", div.clientWidth - 2 * AXIS);
    if (!added) continue;
    layout[key] = {...layout[key], title: {...layout[key].title, text: name}};
    layout.height += added * LINE;
    layout.margin = {...layout.margin, b: (layout.margin.b ?? BARE.margin.b) + added * LINE};
  }
  if (small) {
    if ((layout.legend || {}).y < 0) layout.margin = {...layout.margin, b: BARE.margin.b};
    layout.annotations = (layout.annotations || []).filter((one) => one.name !== "wide only");
    const place = {xref: "container", x: 0.02, xanchor: "left", yref: "container", yanchor: "top"};
    layout.legend = {...layout.legend, ...place, orientation: "h", y: 1 - (top - 6) / layout.height};
  }
  Plotly.purge(div);
  div.style.height = layout.height + "px";
  await Plotly.newPlot(div, {data: spec.data, layout: layout, frames: spec.frames || [], config: CONFIG});
  const legend = div.querySelector(".legend");
  if (!small || !legend) return;
  const heads = (layout.annotations || []).some((one) => one.yref === "paper" && one.y >= 1) ? 24 : 8;
  const tall = Math.ceil(legend.getBoundingClientRect().height) + heads, height = layout.height + tall;
  div.style.height = height + "px";
  await Plotly.relayout(div, {height, "margin.t": top + tall, "legend.y": 1 - (top - 6) / height});
}
// Draws a figure after the drawing of it that is under way, as plotly fails where two overlap. Of several that wait, the last
// is drawn. The mark `data-drawn` says that nothing waits.
async function draw(id, name) {
  const {dataset} = document.getElementById(id);
  wanted.set(id, name);
  delete dataset.drawn;
  if (busy.has(id)) return;
  busy.add(id);
  try {
    while (wanted.has(id)) {
      const next = wanted.get(id);
      wanted.delete(id);
      await drawNow(id, next);
    }
    dataset.drawn = "true";
  } finally { busy.delete(id); }
}
function chosen(id) {
  const select = document.getElementById(id + "-choice");
  return select ? select.value : Object.keys(FIGURES[id])[0];
}
// Draws what is seen and not drawn yet: a figure in a section that is folded waits until it is opened.
function drawSeen() {
  for (const id of Object.keys(FIGURES)) {
    const fold = document.getElementById(id).closest("details");
    if (drawn.has(id) || (fold && !fold.open)) continue;
    drawn.add(id);
    draw(id, chosen(id));
  }
}
function drawAnew() { drawn.clear(); drawSeen(); }
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
async function start() {
  const [library, figures] = await Promise.all([unpacked(PACKED.library), unpacked(PACKED.figures)]);
  const script = document.createElement("script");
  script.textContent = library;
  document.head.append(script);
  FIGURES = JSON.parse(figures);
  for (const id of Object.keys(FIGURES)) {
    const select = document.getElementById(id + "-choice");
    if (select) select.addEventListener("change", () => draw(id, select.value));
  }
  for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", drawSeen);
  dark.addEventListener("change", drawAnew);
  narrow.addEventListener("change", drawAnew);
  drawSeen();
}
if ("DecompressionStream" in window) start();
else document.getElementById("too-old").hidden = false;
