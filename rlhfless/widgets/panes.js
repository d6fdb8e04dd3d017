// Draws the panes of rlhfless.widgets.panes: a grid of plotly figures and of HTML that Python has escaped.
// Knows the traits of the box that holds the panes, and how to draw; nothing of what figures show. What is drawn comes from that
// box, an ordinary ipywidgets model: anywidget drops the messages of its own models on a page that is slow to start.

const CONFIG = {
  displaylogo: false, doubleClick: "reset", showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};
const LOADING = "Loading plotly.js from the kernel …", WAITING = "Waiting for the first figure …";

const ENDED = "The kernel that computed this dashboard has ended. Run the cell again.";
const SILENT_MS = 5000, LOOK_MS = 1000;
const LEAST_WIDTH = 280, NARROW = 480, BESIDE = 90, AXIS_LETTER = 7;  // px; beside the middle of a plot stand the names of its rows

// ipywidgets gives the handles and numbers of sliders no name, and handles of lists say a position: a screen reader should say the
// name and the number that stand beside them. JupyterLab takes keys for its own commands where nothing is typed: in a list they
// should choose.
function helpControls(box) {
  for (const slider of box.querySelectorAll(".widget-inline-hbox")) {
    const label = slider.querySelector(".widget-label"), readout = slider.querySelector(".widget-readout");
    for (const handle of label ? slider.querySelectorAll("[role=slider]:not([aria-label])") : []) {
      handle.setAttribute("aria-label", label.textContent);
      const say = () => {
        if (readout && handle.getAttribute("aria-valuetext") !== readout.textContent)
          handle.setAttribute("aria-valuetext", readout.textContent);
      };
      say();
      new MutationObserver(say).observe(handle, {attributes: true, attributeFilter: ["aria-valuetext"]});
    }
    if (label && readout?.isContentEditable) {
      readout.setAttribute("role", "textbox");
      readout.setAttribute("aria-label", `${label.textContent}, number`);
    }
  }
  for (const list of box.querySelectorAll("select")) list.dataset.lmSuppressShortcuts = "true";
}

// One drawing at a time, and of those that came meanwhile only the newest; none while the mouse is pressed on the figure, as plotly
// would lose that click. `begin` gives it Plotly, `say` shows a sentence instead. `gone` is the signal that the view has ended.
function drawer(div, box, name, gone) {
  let plotly = null, wanted = null, last = null, fitted = "", busy = false, shown = false, drawn = 0, pressed = false;
  const released = (event) => {
    if (!pressed || (event.type === "pointermove" && event.buttons)) return;
    pressed = false;
    setTimeout(next);  // after plotly has seen the release
  };
  div.addEventListener("pointerdown", () => { pressed = true; }, {capture: true, signal: gone});
  for (const what of ["pointerup", "pointercancel", "pointermove", "blur"])
    window.addEventListener(what, released, {capture: true, passive: true, signal: gone});
  function say(text, again) {
    if (shown) plotly.purge(div);
    shown = false;
    div.replaceChildren(Object.assign(document.createElement("p"), {className: "rlhfless-note", textContent: text}));
    if (again) {
      const button = Object.assign(document.createElement("button"), {type: "button", textContent: "Try again"});
      button.addEventListener("click", again);
      div.append(button);
      div.firstChild.setAttribute("role", "alert");
    }
  }
  async function next() {
    if (!plotly || busy || pressed || wanted === null || !div.offsetWidth) return;  // without width: the observer below asks again
    busy = true;
    const spec = JSON.parse(wanted);
    last = wanted;
    wanted = null;
    const colour = getComputedStyle(div).color;
    const layout = {...spec.layout, font: {...spec.layout.font, color: colour}, paper_bgcolor: "rgba(0,0,0,0)", autosize: true};
    fitted = fitTo(div.offsetWidth, spec.data, layout);
    div.style.height = layout.height + "px";
    try {
      const whole = layout.yaxis && layout.yaxis.fixedrange;  // a zoomed timeline: back to all of the step
      if (!shown) div.replaceChildren();
      await plotly.react(div, spec.data, layout, whole ? {...CONFIG, doubleClick: "autosize"} : CONFIG);
      if (!shown) { shown = true; listen(div, box, name); }
      div.dataset.request = String((layout.meta || {}).request || 0);
      div.setAttribute("aria-label", div.querySelector(".gtitle")?.textContent || name);
      helpControls(div.closest(".widget-vbox:not(.rlhfless-box)") || div);
      div.dataset.drawn = String(++drawn);
      div.dataset.drawnAt = String(performance.timeOrigin + performance.now());
    } catch (error) {
      div.dataset.error = String(error);
      shown = true;  // plotly may have begun: what it left goes
      say("This figure cannot be drawn: " + error);
    }
    busy = false;
    next();
  }
  new ResizeObserver(() => {
    if (shown && wanted === null && !busy && !pressed && div.offsetWidth) {
      const {data, layout} = JSON.parse(last);
      if (fitTo(div.offsetWidth, data, layout) === fitted) plotly.Plots.resize(div);
      else wanted = last;
    }
    next();
  }).observe(div.parentElement);
  return {
    say: (text, again) => { if (!plotly) say(text, again); },
    begin: (loaded) => { if (!plotly) { say(WAITING); plotly = loaded; next(); } },
    draw: (text) => { wanted = text; next(); },
  };
}

// A title that is wider than the figure is wrapped, also that of a horizontal axis. On a telephone the legend stands below the
// plot: beside it there is no room. Changes the layout; returns a text that is the same for widths at which it is the same.
function fitTo(width, data, layout) {
  layout.height ||= 380;
  if (width < NARROW) nameInLegend(data, layout);
  const names = data.filter((one) => one.name && one.showlegend !== false).length;
  const below = width < NARROW && names > 1 && (layout.legend || {}).orientation !== "h" ? 2 * LINE + Math.ceil(names / 2) * LINE : 0;
  const [text, lines] = wrapped((layout.title || {}).text || "", Math.max(LEAST_WIDTH, width) - 28);
  if (lines) {
    layout.title = {...layout.title, text};
    layout.margin = {...layout.margin, t: ((layout.margin || {}).t || 100) + lines * LINE};
    layout.height += lines * LINE;
  }
  let across = "";
  for (const [key, axis] of Object.entries(layout).filter(([key, one]) => /^xaxis/.test(key) && one.title)) {
    const [name, added] = wrapped(axis.title.text || "", width - BESIDE, AXIS_LETTER);
    if (added <= 0) continue;
    layout[key] = {...axis, title: {...axis.title, text: name}};
    layout.margin = {...layout.margin, b: ((layout.margin || {}).b || 80) + added * LINE};
    layout.height += added * LINE;
    across += name;
  }
  if (below) {
    layout.legend = {...layout.legend, orientation: "h", x: 0, xanchor: "left", y: 0, yref: "container", yanchor: "bottom"};
    layout.margin = {...layout.margin, b: ((layout.margin || {}).b || 80) + below};
    layout.height += below;
  }
  return `${text} ${below} ${across}`;
}

function listen(div, box, name) {
  div.on("plotly_click", (event) => {
    const point = event.points[0];
    box.send({pane: name, click: {
      curve: point.curveNumber, point: point.pointNumber, x: point.x, y: point.y,
      customdata: point.customdata === undefined ? null : point.customdata, trace: point.data.name || "",
    }});
  });
  div.on("plotly_relayout", (event) => {
    if ("xaxis.range[0]" in event) box.send({pane: name, zoom: [event["xaxis.range[0]"], event["xaxis.range[1]"]]});
    else if (event["xaxis.autorange"]) box.send({pane: name, zoom: null});
  });
}

async function render({model, el}) {
  el.classList.add("rlhfless-panes");
  const gone = new AbortController(), signal = gone.signal;
  const manager = model.widget_manager, box = await manager.get_model(model.get("box"));
  const figures = [], ends = [];
  const listenTo = (from, what, call) => { from.on(what, call); ends.push(() => from.off(what, call)); };
  for (const row of box.get("rows")) {
    const line = document.createElement("div");
    line.className = "rlhfless-row";
    el.appendChild(line);
    for (const [name, grow] of row) {
      const pane = document.createElement("div"), div = document.createElement("div");
      pane.className = "rlhfless-pane";
      pane.style.flexGrow = grow;
      div.dataset.pane = name;
      div.setAttribute("aria-label", name);
      pane.appendChild(div);
      line.appendChild(pane);
      if (box.get("html_panes").includes(name)) {
        div.setAttribute("role", "group");
        const fill = () => {  // whoever works by keyboard stays where they were
          const at = div.contains(document.activeElement) ? document.activeElement.textContent : null;
          div.innerHTML = box.get("pane_" + name);
          const keys = [...div.querySelectorAll("button, summary")];
          if (at !== null) (keys.find((one) => one.textContent === at) || keys[0])?.focus();
        };
        fill();
        listenTo(box, "change:pane_" + name, fill);
      } else {
        div.setAttribute("role", "figure");
        const figure = drawer(div, box, name, signal);
        const show = () => { const text = box.get("pane_" + name); if (text) figure.draw(text); };
        figures.push({...figure, show});
        listenTo(box, "change:pane_" + name, show);
      }
      const grey = () => {
        const stale = box.get("stale").includes(name);
        pane.classList.toggle("rlhfless-stale", stale);
        div.setAttribute("aria-busy", String(stale));
      };
      grey();
      listenTo(box, "change:stale", grey);
    }
  }
  const ended = Object.assign(document.createElement("p"), {className: "rlhfless-note rlhfless-problem", textContent: ENDED});
  ended.setAttribute("role", "alert");
  const alive = () => box.comm_live === false ? el.prepend(ended) : ended.remove();
  listenTo(box, "comm_live_update", alive);
  // Nothing counts on in the page: seconds that the kernel did not send would be no sign of its life.
  let heard = performance.now();
  const silent = Object.assign(document.createElement("p"), {className: "rlhfless-note rlhfless-problem rlhfless-silent"});
  silent.setAttribute("role", "status");
  const look = () => {
    const since = performance.now() - heard;
    if (!box.get("beat") || since < SILENT_MS || box.comm_live === false) return silent.remove();
    silent.textContent = `No sign of life from the kernel for ${Math.floor(since / 1000)} s; what is shown is as old.`;
    if (!silent.isConnected) el.prepend(silent);
  };
  listenTo(box, "change:beat", () => { heard = performance.now(); look(); });
  const looks = setInterval(look, LOOK_MS);
  const all = () => { for (const {show} of figures) show(); };
  all();
  // text colours follow the page: JupyterLab and VS Code change attributes of body, other pages the system's scheme. JupyterLab
  // hides itself for the rest of that frame, in which nothing can be drawn
  const themes = new MutationObserver(() => requestAnimationFrame(() => requestAnimationFrame(all)));
  themes.observe(document.body, {attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-vscode-theme-kind"]});
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", all, {signal});
  el.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) copyText(copy, el.querySelector(copy.dataset.copy));
    const choice = event.target.closest("[data-tell]");
    if (choice) box.send({pane: choice.closest("[data-pane]").dataset.pane, choice: Number(choice.dataset.tell)});
  });
  if (figures.length) load(manager, box, figures, listenTo);
  // What the kernel sent while the page was still making the box's model is lost (a page of Voila, a reload): the kernel compares,
  // and sends again what is not here.
  const names = box.get("rows").flat().map(([name]) => name);
  if (box.comm_live !== false) box.send({has: Object.fromEntries(names.map((name) => [name, adler32(box.get("pane_" + name))]))});
  return () => { clearInterval(looks); themes.disconnect(); gone.abort(); for (const end of ends) end(); };
}

// The checksum that Python has as zlib.adler32, of a text's UTF-8.
function adler32(text) {
  let low = 1, high = 0;
  for (const byte of new TextEncoder().encode(text)) {
    low = (low + byte) % 65521;
    high = (high + low) % 65521;
  }
  return high * 65536 + low;
}

// Gives all figures Plotly; where that fails they say why, until another try, which the kernel answers with a new copy.
async function load(manager, box, figures, listenTo) {
  const heard = new Set();
  async function attempt() {
    for (const {say} of figures) say(LOADING);
    try {
      const name = box.get("library"), source = await manager.get_model(name);
      if (!heard.has(name)) { heard.add(name); listenTo(source, "change:sent", attempt); }
      const plotly = await plotlyOf(source);
      for (const {begin} of figures) begin(plotly);
    } catch (error) {
      const again = () => { box.send({again: true}); attempt(); };
      for (const {say} of figures) say("The figures cannot be drawn yet. " + (error.message || error), again);
    }
  }
  listenTo(box, "change:library", attempt);
  await attempt();
}

async function copyText(button, from) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(from.textContent);
    button.textContent = "copied";
  } catch (error) {  // no clipboard on this page: select the text, so that the keyboard copies it
    from.closest("details").open = true;
    const range = document.createRange();
    range.selectNodeContents(from);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    button.textContent = "selected: press Ctrl+C";
  }
  setTimeout(() => { button.textContent = said; }, 1600);
}

export default {render};
