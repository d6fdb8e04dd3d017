// Breaks texts of figures into lines, on pages and in dashboards: plotly does not.
const LINE = 18, SOFT_LINE = 15, TITLE_LETTER = 8.8, SUBTITLE_LETTER = 6.5;  // px
const SOFT = "<br >";  // a break that Python made for figures of the usual width: on pages it may stand elsewhere
// A text in lines that are not wider than `width`, and how many lines were added; breaks that went away count as less than
// none. Tags stay as they are.
function wrapped(text, width, letter = TITLE_LETTER) {
  let used = 0, space = "", lines = 0, made = "";
  for (const part of text.split(/(<[^>]*>| )/)) {
    if (part === SOFT) { space = " "; lines -= SOFT_LINE / LINE; }
    else if (part.startsWith("<br")) { used = 0; letter = SUBTITLE_LETTER; space = ""; made += part; }
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
// Where names of points have no room beside them, the legend has them. Changes layout and data.
function nameInLegend(data, layout) {
  const notes = layout.annotations || [];
  if (!notes.some((one) => one.name === "policy")) return;
  layout.annotations = notes.filter((one) => one.name !== "policy");
  for (const one of data) if (one.meta === "policy") one.showlegend = true;
}
