// Changes are tried on one screen and go no further, unless they are kept; they are there again when one comes back.

export const draft = { changes: "", isKept: false };
