// Loaded before a server of somebody else's: writes down its process id, and whatever it is sent.
import { appendFileSync } from 'node:fs';

const { SPY_FILE } = process.env;
appendFileSync(SPY_FILE, `${JSON.stringify({ pid: process.pid })}\n`);
const { emit } = process.stdin;
process.stdin.emit = function (name, ...args) {
  if (name === 'data') appendFileSync(SPY_FILE, args[0]);
  return emit.call(this, name, ...args);
};
