"use strict";
const REFRESH_MS = 10000;
const STORED = "agentcache key";
const form = document.querySelector("form");
const said = document.querySelector("#said");
const report = document.querySelector("#report");
let timer = 0;

// In the fragment it is sent to no server. It goes from the address at once, so that nobody reads it there.
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given !== null) {
  sessionStorage.setItem(STORED, given);
  history.replaceState(null, "", location.pathname + location.search);
}

function ask(path) {
  const key = sessionStorage.getItem(STORED);
  return fetch(path, { cache: "no-store", headers: key ? { Authorization: "Bearer " + key } : {} });
}

function say(text) {
  said.textContent = text;
  said.hidden = !text;
}

async function load() {
  clearTimeout(timer);
  // Somebody is typing what to look for.
  if (report.querySelector("#of")?.value) {
    timer = setTimeout(load, REFRESH_MS);
    return;
  }
  try {
    const answer = await ask("agentcache/report?refresh=0");
    form.hidden = answer.status !== 401;
    if (answer.status === 401) {
      say(sessionStorage.getItem(STORED) ? "The server does not take this key." : "");
      return;
    }
    const text = await answer.text();
    if (answer.ok) {
      report.innerHTML = new DOMParser().parseFromString(text, "text/html").body.innerHTML;
    }
    say(answer.ok ? "" : text);
  } catch (error) {
    say("The server does not answer.");
  }
  timer = setTimeout(load, REFRESH_MS);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(STORED, form.elements.key.value);
  load();
});

// A job's address leads to JSON that needs the key, too. It shows until the page is loaded again.
async function show(path) {
  clearTimeout(timer);
  const shown = document.createElement("pre");
  try {
    const answer = await ask("agentcache/" + path);
    shown.textContent = answer.ok ? JSON.stringify(await answer.json(), null, 2) : await answer.text();
  } catch (error) {
    shown.textContent = "The server does not answer.";
  }
  const back = document.createElement("button");
  back.textContent = "Back to the report";
  back.addEventListener("click", load);
  report.replaceChildren(back, shown);
}

report.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link) return;
  event.preventDefault();
  show(link.getAttribute("href"));
});

report.addEventListener("submit", (event) => {
  event.preventDefault();
  show("jobs?of=" + encodeURIComponent(event.target.elements.of.value));
});

load();
