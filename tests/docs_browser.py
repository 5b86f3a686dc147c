#!/usr/bin/env python3
"""Opens every page of the site in a headless Chromium, on a wide and on a narrow screen, and in the dark.

    tests/docs_browser.py SITE [PICTURES]      PICTURES: a folder for pictures of some pages

A page fails if it has no heading or no text, if a picture does not load, if it is wider than the screen, or if a script
fails. The search must find a word of the reference.
"""
import functools
import http.server
import json
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import threading

WIDTHS = (1280, 390)
CHECK = """<!doctype html><meta charset="utf-8"><body><script>
const pages = PAGES, widths = WIDTHS, found = []; // four frames at a time
window.onerror = text => found.push("script: " + text);
function load(frame, page) {
  return new Promise(done => { frame.onload = () => setTimeout(done, 20); frame.src = page; });
}
async function look(page, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:800px;border:0`;
  document.body.append(frame);
  await load(frame, "/" + page);
  const d = frame.contentDocument, w = frame.contentWindow;
  if (!d.querySelector("h1")) found.push(`${page}: no heading`);
  if (d.body.innerText.length < 200) found.push(`${page}: no text`);
  if (d.documentElement.scrollWidth > w.innerWidth + 1)
    found.push(`${page}: ${d.documentElement.scrollWidth} pixels wide on a screen of ${width}`);
  for (const image of d.images) if (image.complete && !image.naturalWidth) found.push(`${page}: ${image.src} does not load`);
  frame.remove();
}
(async () => {
  const rest = widths.flatMap(width => pages.map(page => [page, width]));
  const some = async () => { while (rest.length) await look(...rest.pop()); };
  await Promise.all([some(), some(), some(), some()]);
  fetch("/result", {method: "POST", body: JSON.stringify({checked: pages.length * widths.length, found})});
})();
</script>"""


class Server(http.server.SimpleHTTPRequestHandler):
    results = queue.Queue()

    def log_message(self, *_):
        pass

    def do_POST(self): # the page that checks the others sends its result
        self.results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()


def chromium():
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


def command(profile, *arguments):
    return [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", *arguments]


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    if not chromium():
        print("skipped: no Chromium")
        return 77
    pages = [str(p.relative_to(site)) for p in sorted(site.rglob("*.html")) if p.name != "404.html"]
    pages = [p for p in pages if not p.startswith("source/")] # source files as they are
    with tempfile.TemporaryDirectory() as folder:
        # The pages are opened in frames of a page of the same server, so that its script may look into them.
        served = pathlib.Path(folder) / "served"
        shutil.copytree(site, served)
        (served / "check.html").write_text(CHECK.replace("PAGES", json.dumps(pages)).replace("WIDTHS", json.dumps(WIDTHS)))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=served))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with subprocess.Popen(command(f"{folder}/profile", f"{address}/check.html"), stderr=subprocess.DEVNULL) as browser:
            try:
                result = Server.results.get(timeout=80)
            except queue.Empty:
                result = {"checked": 0, "found": ["the browser did not finish"]}
            browser.terminate()
        if len(sys.argv) > 2:
            pictures(folder, address, pathlib.Path(sys.argv[2]))
        server.shutdown()
    index = (site / "search/search_index.json").read_text()
    if "linear_bias_gelu" not in index:
        result["found"].append("the search does not know linear_bias_gelu")
    for text in result["found"]:
        print(text)
    print(f"{result['checked']} pages opened, {len(result['found'])} faults")
    return bool(result["found"])


def pictures(folder, address, target):
    target.mkdir(parents=True, exist_ok=True)
    for name in ("index.html", "docs/reference/ops.html", "docs/tutorial/2-plan.html", "docs/speed.html"):
        for width in WIDTHS:
            for scheme in (0, 1):
                file = target / f"{name.replace('/', '-')}-{width}-{'dark' if scheme == 0 else 'light'}.png"
                subprocess.run(command(f"{folder}/pictures{scheme}", f"--screenshot={file}", f"--window-size={max(width, 500)},1400",
                                       f"--blink-settings=preferredColorScheme={scheme}", f"{address}/{name}"),
                               stderr=subprocess.DEVNULL, timeout=60)


if __name__ == "__main__":
    sys.exit(main())
