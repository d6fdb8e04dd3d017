const CONFIG = {
  displaylogo: false, showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 640px)");
let FIGURES = {};  // JSON of plotly by the id of the element: one or several to choose from
const drawn = new Map();  // ids, as the page is now, with the width of the frame that they are drawn for
const wanted = new Map(), busy = new Set();  // ids with the name of what is to be drawn next; ids that are being drawn
const LINE = 18, TITLE_LETTER = 8.8, SUBTITLE_LETTER = 6.5, NAME = 108, BESIDE = 600, AXIS = 60, WIDEST = 760, LEAST = 280,
  SYMBOL = 76, MODE_BAR = 32, GAP = 8, BAR_TEXT = 90;  // px
const NAMES = 0.36;  // share of a narrow figure for names at its left axis
// A text in lines that are not wider than `width`, and how many lines were added. Tags stay as they are.
function wrapped(text, width, letter = TITLE_LETTER) {
  let used = 0, space = "", lines = 0, made = "";
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
const BARE = {height: 450, title: {text: ""}, margin: {l: 80, t: 100, b: 80}};
const boxes = (div, which) => [...div.querySelectorAll(which)].map((one) => one.getBoundingClientRect());
// Where the title of a drawn figure ends (px from the top), and how far texts reach over its plots: headings of panels, captions.
function roomAbove(div) {
  const top = Math.min(...boxes(div, ".nsewdrag").map((box) => box.top)), [title] = boxes(div, ".gtitle");
  const reach = Math.max(0, ...boxes(div, ".annotation").map((box) => top - box.top));
  return [title ? title.bottom - div.getBoundingClientRect().top : 0, reach];
}
// The left axes whose names would leave little room for bars, with these names in lines.
function wrappedNames(data, layout, width) {
  const names = {}, axes = {};
  for (const {y, yaxis} of data.filter((one) => Array.isArray(one.y)))
    names[(yaxis || "y").replace("y", "yaxis")] = [...(names[(yaxis || "y").replace("y", "yaxis")] || []), ...y];
  for (const [key, all] of Object.entries(names)) {
    const tickvals = [...new Set(all.filter((one) => typeof one === "string"))];
    const ticktext = tickvals.map((one) => wrapped(one, width, SUBTITLE_LETTER)[0]);
    if (ticktext.some((one, i) => one !== tickvals[i])) axes[key] = {...layout[key], tickmode: "array", tickvals, ticktext};
  }
  return axes;
}
// Wraps the texts in and beside horizontal bars of a drawn figure where they are longer than the bar, or than the room beside it.
async function wrapBarTexts(div) {
  for (const [place, bars] of div._fullData.entries()) {
    const outside = bars.textposition === "outside", inside = bars.textposition === "inside" && bars.constraintext === "none";
    if (bars.type !== "bar" || bars.orientation !== "h" || !Array.isArray(bars.text) || !(inside || outside)) continue;
    const axis = div._fullLayout["xaxis" + (bars.xaxis || "x").slice(1)], texts = bars.text.map((one) => String(one ?? ""));
    const room = (i) => { const end = axis.c2p(bars.x[i]); return (inside ? end : axis._length - end) - GAP; };
    const made = texts.map((one, i) => wrapped(one, Math.max(BAR_TEXT, room(i)), SUBTITLE_LETTER)[0]);
    if (made.some((one, i) => one !== texts[i])) await Plotly.restyle(div, {text: [made]}, [place]);
  }
}
// A title that is wider than the figure is wrapped, also that of an axis. On a narrow screen the legend stands between title and
// plot, with its names wrapped: beside the plot it would cover the plot. A figure that needs room keeps its width, and its frame
// scrolls; the names of its legend stand under each other, so that all are seen. No figure is narrower than plotly can draw, as a
// window may be one pixel wide for a moment, or for as long as it is hidden. One that states its width is not wider.
async function drawNow(id, name) {
  const div = document.getElementById(id), spec = FIGURES[id][name], small = narrow.matches;
  const colour = getComputedStyle(document.body).color, {width, ...stated} = spec.layout;
  const layout = {...BARE, ...stated, margin: {...BARE.margin, ...stated.margin},
    font: {...stated.font, color: colour}, paper_bgcolor: "rgba(0,0,0,0)", autosize: true};
  if (dark.matches) layout.plot_bgcolor ??= "rgba(0,0,0,0)";
  let top = layout.margin.t, data = spec.data;
  div.style.maxWidth = width ? width + "px" : "";
  div.style.minWidth = Math.max(LEAST, small ? widthNeeded(layout) : 0) + "px";
  const shown = Math.min(div.parentElement.clientWidth, width || Infinity);
  const [text, lines] = wrapped(layout.title.text || "", Math.max(LEAST, shown) - 28);
  if (lines) {
    top += lines * LINE;
    layout.height += lines * LINE;
    layout.title = {...layout.title, text};
    layout.margin = {...layout.margin, t: top};
  }
  const inner = layout.height - layout.margin.t - layout.margin.b;
  for (const [key, axis] of Object.entries(layout).filter(([key, one]) => /^[xy]axis/.test(key) && one.title)) {
    const across = key.startsWith("x"), [low, high] = axis.domain || [0, 1];
    const room = across ? div.clientWidth - 2 * AXIS : (high - low) * inner + AXIS;
    const [name, added] = wrapped(axis.title.text || "", room);
    if (!added) continue;
    layout[key] = {...axis, title: {...axis.title, text: name}};
    if (!across) continue;
    layout.height += added * LINE;
    layout.margin = {...layout.margin, b: layout.margin.b + added * LINE};
  }
  if (small) {
    if ((layout.legend || {}).y < 0) layout.margin = {...layout.margin, b: BARE.margin.b};
    layout.annotations = (layout.annotations || []).filter((one) => one.name !== "wide only");
    const seen = div.parentElement.clientWidth, scrolls = div.clientWidth > seen + 1;
    layout.legend = {...layout.legend, xref: "container", x: 0.02, xanchor: "left", yref: "container", yanchor: "top", y: 1,
      orientation: "h", entrywidthmode: "pixels", entrywidth: scrolls ? div.clientWidth / 2 : 0};  // more than half: one in a line
    Object.assign(layout, wrappedNames(data, layout, NAMES * seen));
    data = data.map((one) => one.name ? {...one, name: wrapped(one.name, seen - SYMBOL, SUBTITLE_LETTER)[0]} : one);
  }
  Plotly.purge(div);
  div.style.height = layout.height + "px";
  await Plotly.newPlot(div, {data, layout: layout, frames: spec.frames || [], config: CONFIG});
  await wrapBarTexts(div);
  const [legend] = boxes(div, ".legend > .bg"), [slides] = boxes(div, ".slider-group");
  if (!legend) return;
  const [title, reach] = roomAbove(div), above = Math.max(title, MODE_BAR) + GAP, {b} = layout.margin;
  const upper = Math.ceil(above + div.getBoundingClientRect().top - legend.top);  // where a legend over the plot has many lines
  const covered = boxes(div, "[class^='g-x'] text").filter((one) => one.left < legend.right && one.right > legend.left
    && one.top < legend.bottom && one.bottom > legend.top);
  const down = Math.max(0, ...covered.map((one) => Math.ceil(one.bottom - legend.top)));  // where ticks need more room than usual
  const lower = slides && legend.top < slides.bottom ? Math.max(0, Math.ceil(legend.bottom + down - slides.top) + GAP) : 0;
  let changes = null;
  if (small) {
    const added = Math.ceil(above + legend.height + reach) + GAP - top, height = layout.height + added;
    changes = {height, "margin.t": top + added, "legend.y": 1 - above / height};
  } else if (down > 0 || lower > 0) {
    const added = lower || down;
    changes = {height: layout.height + added, "margin.b": b + added, "legend.y": layout.legend.y - down / div._fullLayout._size.h};
    if (lower) changes["sliders[0].pad.t"] = layout.sliders[0].pad.t + lower;
  } else if (upper > 0) changes = {height: layout.height + upper, "margin.t": top + upper};
  if (!changes) return;
  div.style.height = changes.height + "px";
  await Plotly.relayout(div, changes);
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
    drawn.set(id, document.getElementById(id).parentElement.clientWidth);
    draw(id, chosen(id));
  }
}
// Draws the figures anew whose frames have another width than before: titles and legends are laid out for it.
function drawResized() {
  for (const [id, width] of drawn) {
    const frame = document.getElementById(id).parentElement;
    if (frame.getClientRects().length && frame.clientWidth !== width) drawn.delete(id);  // none has one in a folded section
  }
  drawSeen();
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
  const frames = new ResizeObserver(() => requestAnimationFrame(drawResized));
  for (const id of Object.keys(FIGURES)) frames.observe(document.getElementById(id).parentElement);
  drawSeen();
}
if ("DecompressionStream" in window) start();
else document.getElementById("too-old").hidden = false;
