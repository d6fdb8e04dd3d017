// Draws the panes of rlhfless.widgets.panes: a grid of plotly figures and of HTML that Python has escaped.
// Knows plotly (bundled before this text as `Plotly`) and the model's traits; nothing of what figures show.

const CONFIG = {
  displaylogo: false, doubleClick: "reset",
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

// ipywidgets gives the handles of sliders no name: a screen reader should say the one that stands beside them. JupyterLab takes
// keys for its own commands where nothing is typed: in a list they should choose.
function helpKeyboards(box) {
  for (const handle of box.querySelectorAll(".widget-inline-hbox [role=slider]:not([aria-label])")) {
    const label = handle.closest(".widget-inline-hbox").querySelector(".widget-label");
    if (label) handle.setAttribute("aria-label", label.textContent);
  }
  for (const list of box.querySelectorAll("select")) list.dataset.lmSuppressShortcuts = "true";
}

// One drawing at a time, and of those that came meanwhile only the newest.
function drawer(div, model, name) {
  let wanted = null, busy = false, shown = false, drawn = 0;
  async function next() {
    if (busy || wanted === null || !div.offsetWidth) return;  // not on the page yet: the observer below asks again
    busy = true;
    const spec = JSON.parse(wanted);
    wanted = null;
    const colour = getComputedStyle(div).color;
    const layout = {...spec.layout, font: {...spec.layout.font, color: colour}, paper_bgcolor: "rgba(0,0,0,0)", autosize: true};
    div.style.height = (layout.height || 380) + "px";
    try {
      const whole = layout.yaxis && layout.yaxis.fixedrange;  // a zoomed timeline: back to all of the step
      await Plotly.react(div, spec.data, layout, whole ? {...CONFIG, doubleClick: "autosize"} : CONFIG);
      if (!shown) { shown = true; listen(div, model, name); }
      div.dataset.request = String((layout.meta || {}).request || 0);
      helpKeyboards(div.closest(".widget-vbox") || div);
      div.dataset.drawn = String(++drawn);
      div.dataset.drawnAt = String(performance.timeOrigin + performance.now());
    } catch (error) {
      div.dataset.error = String(error);
      div.textContent = "This figure cannot be drawn: " + error;
    }
    busy = false;
    next();
  }
  new ResizeObserver(() => {
    if (shown && wanted === null && !busy && div.offsetWidth) Plotly.Plots.resize(div);
    next();
  }).observe(div.parentElement);
  return (text) => { wanted = text; next(); };
}

function listen(div, model, name) {
  div.on("plotly_click", (event) => {
    const point = event.points[0];
    model.send({pane: name, click: {
      curve: point.curveNumber, point: point.pointNumber, x: point.x, y: point.y,
      customdata: point.customdata === undefined ? null : point.customdata, trace: point.data.name || "",
    }});
  });
  div.on("plotly_relayout", (event) => {
    if ("xaxis.range[0]" in event) model.send({pane: name, zoom: [event["xaxis.range[0]"], event["xaxis.range[1]"]]});
    else if (event["xaxis.autorange"]) model.send({pane: name, zoom: null});
  });
}

function render({model, el}) {
  el.classList.add("rlhfless-panes");
  const redraw = [], ends = [];
  const listenTo = (what, call) => { model.on(what, call); ends.push(() => model.off(what, call)); };
  for (const row of model.get("rows")) {
    const line = document.createElement("div");
    line.className = "rlhfless-row";
    el.appendChild(line);
    for (const [name, grow] of row) {
      const box = document.createElement("div"), div = document.createElement("div");
      box.className = "rlhfless-pane";
      box.style.flexGrow = grow;
      div.dataset.pane = name;
      box.appendChild(div);
      line.appendChild(box);
      if (model.get("html_panes").includes(name)) {
        const fill = () => {  // whoever works by keyboard stays where they were
          const at = div.contains(document.activeElement) ? document.activeElement.textContent : null;
          div.innerHTML = model.get("pane_" + name);
          const keys = [...div.querySelectorAll("button, summary")];
          if (at !== null) (keys.find((one) => one.textContent === at) || keys[0])?.focus();
        };
        fill();
        listenTo("change:pane_" + name, fill);
      } else {
        const draw = drawer(div, model, name);
        const show = () => { const text = model.get("pane_" + name); if (text) draw(text); };
        redraw.push(show);
        listenTo("change:pane_" + name, show);
      }
      const grey = () => box.classList.toggle("rlhfless-stale", model.get("stale").includes(name));
      grey();
      listenTo("change:stale", grey);
    }
  }
  for (const show of redraw) show();
  // text colours follow the page: JupyterLab and VS Code change attributes of body, other pages the system's scheme
  const all = () => { for (const show of redraw) show(); };
  const themes = new MutationObserver(all);
  themes.observe(document.body, {attributes: true, attributeFilter: ["class", "data-jp-theme-light", "data-vscode-theme-kind"]});
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", all);
  el.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) copyText(copy, el.querySelector(copy.dataset.copy));
    const choice = event.target.closest("[data-tell]");
    if (choice) model.send({pane: choice.closest("[data-pane]").dataset.pane, choice: Number(choice.dataset.tell)});
  });
  return () => { themes.disconnect(); dark.removeEventListener("change", all); for (const end of ends) end(); };
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
