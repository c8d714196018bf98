// What the server last said about itself: the model, its lenses, how far a long job is.

import { ask, isOffline, waited } from "./ask.js";

let latest = null;

export function setStatus(status) {
  latest = status;
}

export function getStatus() {
  return latest;
}

export function isReady() {
  return latest?.state === "ready" || isOffline();
}

// Shows how far a long job is while it is waited for.
export async function watchJob(promise, show) {
  let isOver = false;
  const over = () => {
    isOver = true;
  };
  promise.then(over, over);
  await waited(500);
  while (!isOver) {
    const status = await ask("status").catch(() => null);
    if (status?.job && !isOver) show(status.job);
    await waited(400);
  }
  return promise;
}
