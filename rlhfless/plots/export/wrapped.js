// Breaks texts of figures into lines, on pages and in dashboards: plotly does not.
const LINE = 18, TITLE_LETTER = 8.8, SUBTITLE_LETTER = 6.5;  // px
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
