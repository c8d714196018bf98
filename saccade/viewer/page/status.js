// The last status of the server: the model, its lenses, the progress of a job.

import { request, isOffline, delay } from "./api.js";

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

// Shows the progress of a job until it is done.
export async function watchJob(promise, show) {
  let isOver = false;
  const over = () => {
    isOver = true;
  };
  promise.then(over, over);
  await delay(500);
  while (!isOver) {
    const status = await request("status").catch(() => null);
    if (status?.job && !isOver) show(status.job);
    await delay(400);
  }
  return promise;
}
