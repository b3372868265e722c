"use strict";

const ballot = document.getElementById("ballot");
const undo = document.getElementById("undo");
const KEYS = {a: "left", 1: "left", b: "right", 2: "right", t: "tie", 3: "tie", x: "both_bad", 4: "both_bad", s: "skip", 5: "skip"};

let spent = 0;
let since = document.hidden ? null : performance.now();
let sent = false;

function pause() {
  if (since !== null) spent += performance.now() - since;
  since = null;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) pause();
  else if (since === null) since = performance.now();
});

ballot.addEventListener("submit", (event) => {
  if (sent) {
    event.preventDefault();
    return;
  }
  sent = true;
  pause();
  ballot.elements.seconds.value = (spent / 1000).toFixed(3);
});

undo.addEventListener("submit", (event) => {
  if (sent) event.preventDefault();
  sent = true;
});

window.addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const field = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    document.querySelector(".reasons").open = false;
    if (field) field.blur();
    return;
  }
  if (field && field.type === "text") return;
  const key = event.key.toLowerCase();
  if (key === "u") {
    event.preventDefault();
    undo.requestSubmit();
  } else if (key === "r") {
    event.preventDefault();
    document.querySelector(".reasons").open = true;
    ballot.querySelector("input[type=checkbox]").focus();
  } else if (key in KEYS) {
    event.preventDefault();
    ballot.requestSubmit(ballot.querySelector(`button[value="${KEYS[key]}"]`));
  }
});
