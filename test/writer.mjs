// A process of the eight: writes lines to a room with the key of a directory, and says which ones were acknowledged.
import { Signer } from '../dist/signer.js';

const [dir, base, room, slot, from, count, attempt] = process.argv.slice(2);
const report = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);

const signer = await Signer.fromDir(dir);
const onEvent = ({ kind, cause }) => report({ event: kind, code: cause?.code });
for (let i = Number(from), again = 0; i < Number(count); ) {
  const text = `slot ${slot} line ${i} attempt ${attempt}.${again}`;
  try {
    const { seq, nonce } = await signer.say(room, text, { base, onEvent });
    report({ seq, nonce, text });
    i++;
  } catch (e) {
    // So slow a machine that half a minute was not enough.
    if (e.code !== 'unavailable' && e.code !== 'may_have_landed') throw e;
    report({ event: 'gave up', code: e.code });
    again++;
  }
}
