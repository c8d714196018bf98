// The changes of the Act screen: other screens use them only if they are applied there; they stay until the page closes.

export const draft = { changes: "", isApplied: false };
