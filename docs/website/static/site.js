// What scrolls by itself can be reached with the Tab key.
function reachable() {
  for (const box of document.querySelectorAll("pre, .table-wrapper, .figure, div.cell_output")) {
    if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
new ResizeObserver(reachable).observe(document.body);
