// The site's switch between light and dark does not change what the system prefers: figures are drawn anew for their new ink.
new MutationObserver(drawAnew).observe(document.body, {attributes: true, attributeFilter: ["data-theme"]});
