"""What a browser sees of a page that a test cares about: messages, requests, what is cut, and what axe finds."""

from axe_playwright_python.sync_playwright import Axe

WIDTHS, SCHEMES, HEIGHT = (390, 768, 1280), ("light", "dark"), 844

# Elements that stick out of the window, except inside a container that scrolls; text that sticks out of its cell. Half a pixel
# is rounding; a few more are the padding of a code word at a line's end.
CUT = """(within) => {
  const found = [], slack = 0.5, width = document.documentElement.clientWidth;
  const name = (element) => `${element.tagName.toLowerCase()} ${(element.textContent || '').trim().slice(0, 60)}`;
  const scrolls = (element) => {
    for (let one = element; one && one !== document.body; one = one.parentElement)
      if (['auto', 'scroll'].includes(getComputedStyle(one).overflowX)) return true;
    return false;
  };
  if (document.documentElement.scrollWidth > width) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const element of document.querySelectorAll(`${within} *`)) {
    if (element.closest('svg') && element.tagName !== 'svg') continue;
    const box = element.getBoundingClientRect();
    if (box.width && !scrolls(element) && (box.right > width + slack || box.left < -slack)) found.push(name(element));
    if (['TD', 'TH', 'DD', 'DT', 'P', 'LI', 'H1', 'H2', 'FIGCAPTION'].includes(element.tagName) && element.scrollWidth > element.clientWidth + 4)
      found.push(`text in ${name(element)}`);
  }
  return found;
}"""


# Cells of tables that are not wholly in the box around them, which scrolls: a reader does not know that it does.
OUT_OF_SIGHT = """() => [...document.querySelectorAll('td')].filter((cell) => {
  const range = document.createRange(), shown = (cell.closest('.wide') || document.body).getBoundingClientRect();
  range.selectNodeContents(cell);
  return [...range.getClientRects()].some((box) => box.right > shown.right + 0.5 || box.left < shown.left - 0.5);
}).map((cell) => cell.textContent.trim().slice(0, 60))"""


class Opened:
    """A page that is open, with its console messages, its errors, and the addresses it asked for besides its own.

    `own` begins the addresses that are its own: for a page that is complete in itself its address alone.
    """

    def __init__(self, browser, address, width, scheme, *, height=HEIGHT, own=None):
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.messages, self._asked = [], []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self._asked.append(request.url))
        address = address if isinstance(address, str) else address.as_uri()
        self.page.goto(address, wait_until="load")
        self._mine = (own or address, "data:")

    @property
    def requests(self):
        """The addresses asked for so far, besides its own."""
        return [asked for asked in self._asked if not asked.startswith(self._mine)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def cut(self, within="body"):
        """What does not fit, in words, among the elements within that of a selector."""
        return self.page.evaluate(CUT, within)

    def out_of_sight(self):
        """The cells of tables that one must scroll sideways to read, in words."""
        return self.page.evaluate(OUT_OF_SIGHT)

    def faults(self):
        """The serious and critical faults that axe finds: rule and elements."""
        found = Axe().run(self.page).response["violations"]
        return [
            (fault["id"], [node["target"] for node in fault["nodes"]][:3])
            for fault in found
            if fault["impact"] in ("serious", "critical")
        ]

    def box(self, selector):
        """Where the first element of a selector is: left, top, width, height."""
        return self.page.locator(selector).first.bounding_box()
