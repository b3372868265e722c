// Shows the page's figures anew every few seconds; without a script the page is as it was when it was loaded.
const EVERY_MS = 5000;

async function anew() {
  const live = document.getElementById("live");
  if (!live || document.hidden) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("live");
  if (fresh && fresh.innerHTML !== live.innerHTML) live.innerHTML = fresh.innerHTML;
}

setInterval(() => anew().catch(() => {}), EVERY_MS);
