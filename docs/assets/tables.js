// The theme puts wide tables into boxes that scroll; a keyboard can scroll a box only if it can stand on it.
addEventListener("load", () => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) box.tabIndex = 0
})
