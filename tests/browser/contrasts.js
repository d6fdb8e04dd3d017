// The contrast of every text within elements with what is behind it, by WCAG's formula, as [ratio, text].
// Knows colours, opacity and layers of a page; nothing of what is legible. Labels within bars are left out.
(root) => {
  const parse = (colour) => {
    const [r, g, b, a] = colour.match(/[\d.]+/g).map(Number), scale = colour.startsWith("color(") ? 255 : 1;
    return [r * scale, g * scale, b * scale, a === undefined ? 1 : a];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[3] * top[i] + (1 - top[3]) * under[i]).concat([1]);
  const light = (colour) => colour.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  for (const one of document.querySelectorAll(`${root} *`)) {
    const text = [...one.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent.trim()).join("");
    const box = one.getBoundingClientRect();
    if (!text || !box.width || !box.height || one.closest("style, script, :disabled, .modebar, .barlayer")) continue;
    const style = getComputedStyle(one), behind = [];
    if (style.visibility === "hidden") continue;
    let faint = 1;
    for (let at = one; at; at = at.parentElement) {
      const own = getComputedStyle(at);
      faint *= Number(own.opacity);
      const figure = at.classList.contains("svg-container") && at.querySelector(".main-svg");  // layers lie above the first
      const paper = parse(figure ? getComputedStyle(figure).backgroundColor : own.backgroundColor);
      if (paper[3] > 0) behind.push(paper);
      if (paper[3] === 1) break;
    }
    const paper = behind.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
    const ink = parse(one.ownerSVGElement ? style.fill : style.color);
    ink[3] *= faint;
    const [a, b] = [light(over(ink, paper)), light(paper)];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.slice(0, 60)]);
  }
  return found;
}
