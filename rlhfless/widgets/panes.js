// Draws the panes of rlhfless.widgets.panes: a grid of plotly figures and of HTML that Python has escaped.
// Knows the traits of the box that holds the panes, and how to draw; nothing of what figures show. What is drawn comes from that
// box, an ordinary ipywidgets model: anywidget drops the messages of its own models on a page that is slow to start.

const CONFIG = {
  displaylogo: false, doubleClick: "reset", showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};
const LOADING = "Loading plotly.js from the kernel …", WAITING = "Waiting for the first figure …";

// ipywidgets gives the handles of sliders no name: a screen reader should say the one that stands beside them. JupyterLab takes
// keys for its own commands where nothing is typed: in a list they should choose.
function helpKeyboards(box) {
  for (const handle of box.querySelectorAll(".widget-inline-hbox [role=slider]:not([aria-label])")) {
    const label = handle.closest(".widget-inline-hbox").querySelector(".widget-label");
    if (label) handle.setAttribute("aria-label", label.textContent);
  }
  for (const list of box.querySelectorAll("select")) list.dataset.lmSuppressShortcuts = "true";
}

// One drawing at a time, and of those that came meanwhile only the newest. `begin` gives it Plotly, `say` shows a sentence instead.
function drawer(div, box, name) {
  let plotly = null, wanted = null, busy = false, shown = false, drawn = 0;
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
    if (!plotly || busy || wanted === null || !div.offsetWidth) return;  // not on the page yet: the observer below asks again
    busy = true;
    const spec = JSON.parse(wanted);
    wanted = null;
    const colour = getComputedStyle(div).color;
    const layout = {...spec.layout, font: {...spec.layout.font, color: colour}, paper_bgcolor: "rgba(0,0,0,0)", autosize: true};
    div.style.height = (layout.height || 380) + "px";
    try {
      const whole = layout.yaxis && layout.yaxis.fixedrange;  // a zoomed timeline: back to all of the step
      if (!shown) div.replaceChildren();
      await plotly.react(div, spec.data, layout, whole ? {...CONFIG, doubleClick: "autosize"} : CONFIG);
      if (!shown) { shown = true; listen(div, box, name); }
      div.dataset.request = String((layout.meta || {}).request || 0);
      helpKeyboards(div.closest(".widget-vbox:not(.rlhfless-box)") || div);
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
    if (shown && wanted === null && !busy && div.offsetWidth) plotly.Plots.resize(div);
    next();
  }).observe(div.parentElement);
  return {
    say: (text, again) => { if (!plotly) say(text, again); },
    begin: (loaded) => { if (!plotly) { say(WAITING); plotly = loaded; next(); } },
    draw: (text) => { wanted = text; next(); },
  };
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
      pane.appendChild(div);
      line.appendChild(pane);
      if (box.get("html_panes").includes(name)) {
        const fill = () => {  // whoever works by keyboard stays where they were
          const at = div.contains(document.activeElement) ? document.activeElement.textContent : null;
          div.innerHTML = box.get("pane_" + name);
          const keys = [...div.querySelectorAll("button, summary")];
          if (at !== null) (keys.find((one) => one.textContent === at) || keys[0])?.focus();
        };
        fill();
        listenTo(box, "change:pane_" + name, fill);
      } else {
        const figure = drawer(div, box, name);
        const show = () => { const text = box.get("pane_" + name); if (text) figure.draw(text); };
        figures.push({...figure, show});
        listenTo(box, "change:pane_" + name, show);
      }
      const grey = () => pane.classList.toggle("rlhfless-stale", box.get("stale").includes(name));
      grey();
      listenTo(box, "change:stale", grey);
    }
  }
  const all = () => { for (const {show} of figures) show(); };
  all();
  // text colours follow the page: JupyterLab and VS Code change attributes of body, other pages the system's scheme
  const themes = new MutationObserver(all);
  themes.observe(document.body, {attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-vscode-theme-kind"]});
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", all);
  el.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) copyText(copy, el.querySelector(copy.dataset.copy));
    const choice = event.target.closest("[data-tell]");
    if (choice) box.send({pane: choice.closest("[data-pane]").dataset.pane, choice: Number(choice.dataset.tell)});
  });
  if (figures.length) load(manager, box, figures, listenTo);
  return () => { themes.disconnect(); dark.removeEventListener("change", all); for (const end of ends) end(); };
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
