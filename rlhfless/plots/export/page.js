const CONFIG = {
  displaylogo: false, showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 640px)");
let FIGURES = {};  // JSON of plotly by the id of the element: one or several to choose from
const drawn = new Map();  // ids, as the page is now, with the width of the frame that they are drawn for
const wanted = new Map(), busy = new Set();  // ids with the name of what is to be drawn next; ids that are being drawn
const NAME = 108, BESIDE = 600, AXIS = 60, LEAST = 280, SYMBOL = 76, MODE_BAR = 32, GAP = 8, BAR_TEXT = 90;  // px
const NAMES = 0.36;  // share of a narrow figure for names at its left axis
// How wide a figure must be (px) that has plots beside each other, or names below an axis or beside points that would overlap;
// else 0.
function widthNeeded(layout) {
  const axes = Object.keys(layout).filter((key) => key.startsWith("xaxis")).map((key) => layout[key]);
  const names = Math.max(0, ...axes.map((axis) => (axis.ticktext || axis.categoryarray || []).length));
  const beside = (layout.annotations || []).some((one) => one.name === "variant")
    || axes.some((axis) => (axis.domain || [0])[0] > 0.05);
  return Math.max(names > 4 ? names * NAME : 0, beside ? BESIDE : 0);
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
// Notes in `added` what a panel needs to be higher (px) so that texts do not lie on each other, by the panel's lower end.
async function wrapBarTexts(div, added) {
  const {_fullData: data, _fullLayout: layout} = div;
  for (const [place, bars] of data.entries()) {
    const outside = bars.textposition === "outside", inside = bars.textposition === "inside" && bars.constraintext === "none";
    if (bars.type !== "bar" || bars.orientation !== "h" || !Array.isArray(bars.text) || !(inside || outside)) continue;
    const axis = layout["xaxis" + (bars.xaxis || "x").slice(1)], texts = bars.text.map((one) => String(one ?? ""));
    const room = (i) => { const end = axis.c2p(bars.x[i]); return (inside ? end : axis._length - end) - GAP; };
    const made = texts.map((one, i) => wrapped(one, Math.max(BAR_TEXT, room(i)), SUBTITLE_LETTER)[0]);
    if (made.every((one, i) => one === texts[i])) continue;
    const {c2p, domain, _length: length} = layout["yaxis" + (bars.yaxis || "y").slice(1)];
    const beside = layout.barmode === "group" ? data.filter((one) => one.type === "bar" && one.yaxis === bars.yaxis).length : 1;
    const needed = beside * LINE * Math.max(...made.map((one) => one.split("<br>").length));
    const higher = length * (needed / Math.abs(c2p(1) - c2p(0)) - 1);
    if (higher > 0) added.set(domain[0], Math.max(added.get(domain[0]) || 0, Math.ceil(higher)));
    await Plotly.restyle(div, {text: [made]}, [place]);
  }
}
// Wraps the headings over the panels of a drawn figure that are cut off at its edge, also those of a slider's frames. Notes in
// `added` the height of the lines that were added (px), by the place of the heading. Returns the changes of the layout.
function wrapHeadings(div, added) {
  const {annotations} = div.layout, frame = div.getBoundingClientRect(), changes = {};
  const frames = div._transitionData._frames.map((one) => (one.layout || {}).annotations || []);
  for (const note of div.querySelectorAll(".annotation")) {
    const place = Number(note.dataset.index), one = annotations[place], box = note.getBoundingClientRect();
    if (one.yref !== "paper" || one.yanchor !== "bottom" || one.showarrow) continue;
    const middle = (box.left + box.right) / 2, left = one.xanchor === "left";
    const room = left ? frame.right - box.left : 2 * Math.min(middle - frame.left, frame.right - middle);
    const fits = (text) => wrapped(text, room - GAP, SUBTITLE_LETTER * ((one.font || {}).size || 12) / 12);
    const others = frames.map((notes) => notes[place]).filter(Boolean), [text, lines] = fits(one.text);
    const most = Math.max(lines, ...others.map((other) => fits(other.text)[1]));
    if (!most || (!others.length && box.left >= frame.left && box.right <= frame.right)) continue;
    changes[`annotations[${place}].text`] = text;
    for (const other of others) other.text = fits(other.text)[0];
    added.set(one.y, Math.max(added.get(one.y) || 0, most * LINE));
  }
  return changes;
}
// Makes a drawn figure higher by what is in `added` (px, by the place in the plot over which it is added), changes its layout, and
// returns what was added over the uppermost panels.
async function stretch(div, added, changes) {
  const {h} = div._fullLayout._size, {layout} = div;
  const below = (y) => [...added].reduce((sum, [at, px]) => sum + (at < y - 1e-6 ? px : 0), 0);
  const between = below(1), top = below(Infinity) - between, height = layout.height + between + top;
  const moved = (y) => (y * h + below(y)) / (h + between);
  for (const [key, axis] of Object.entries(layout).filter(([key]) => key.startsWith("yaxis")))
    changes[`${key}.domain`] = (axis.domain || [0, 1]).map(moved);
  for (const [place, one] of (layout.annotations || []).entries())
    if (one.yref === "paper") changes[`annotations[${place}].y`] = moved(one.y);
  for (const [place, one] of (layout.shapes || []).entries())
    if (one.yref === "paper") for (const end of ["y0", "y1"]) changes[`shapes[${place}].${end}`] = moved(one[end]);
  if (layout.legend && layout.legend.yref !== "container") changes["legend.y"] = moved(layout.legend.y);
  div.style.height = height + "px";
  await Plotly.relayout(div, {...changes, height, "margin.t": layout.margin.t + top});
  return top;
}
// A title that is wider than the figure is wrapped, also that of an axis. On a narrow screen the legend stands between title and
// plot, with its names wrapped: beside the plot it would cover the plot. A figure that needs room keeps its width, and its frame
// scrolls; the names of its legend stand under each other, so that all are seen. No figure is narrower than plotly can draw, as a
// window may be one pixel wide for a moment, or for as long as it is hidden. One that states its width is not wider.
async function drawNow(id, name) {
  const div = document.getElementById(id), spec = FIGURES[id][name], small = narrow.matches;
  const colour = getComputedStyle(document.body).color, {width, ...stated} = structuredClone(spec.layout);
  const layout = {...BARE, ...stated, margin: {...BARE.margin, ...stated.margin},
    font: {...stated.font, color: colour}, paper_bgcolor: "rgba(0,0,0,0)", autosize: true};
  if (dark.matches) layout.plot_bgcolor ??= "rgba(0,0,0,0)";
  let top = layout.margin.t, data = spec.data.map((one) => ({...one}));  // copies: plotly writes into what it is given
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
    nameInLegend(data, layout);
    if ((layout.legend || {}).y < 0) layout.margin = {...layout.margin, b: BARE.margin.b};
    layout.annotations = (layout.annotations || []).filter((one) => one.name !== "wide only");
    const seen = div.parentElement.clientWidth, scrolls = div.clientWidth > seen + 1;
    layout.legend = {...layout.legend, xref: "container", x: 0.02, xanchor: "left", yref: "container", yanchor: "top", y: 1,
      orientation: "h", entrywidthmode: "pixels", entrywidth: scrolls ? div.clientWidth / 2 : 0};  // more than half: one in a line
    Object.assign(layout, wrappedNames(data, layout, NAMES * seen));
    for (const one of data) if (one.name) one.name = wrapped(one.name, seen - SYMBOL, SUBTITLE_LETTER)[0];
  }
  Plotly.purge(div);
  div.style.height = layout.height + "px";
  await Plotly.newPlot(div, {data, layout: layout, frames: structuredClone(spec.frames || []), config: CONFIG});
  const added = new Map();
  await wrapBarTexts(div, added);
  const changed = wrapHeadings(div, added);
  if (added.size) top += await stretch(div, added, changed);
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
