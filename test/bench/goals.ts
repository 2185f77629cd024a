/** One goal: what was wanted, and what came of it. */
export interface Goal {
  /** Which of the twelve. */
  number: number;
  name: string;
  value: number;
  /** `>=` or `<=` this. */
  target: ['>=' | '<=', number];
  /** Figures behind it. */
  detail?: string;
  /** Why it is missed, where that is known. */
  why?: string;
}

/** Goals that could not be measured here. */
export interface Skipped {
  number: number;
  name: string;
  skipped: string;
}

export type Outcome = Goal | Skipped;

const isMet = ({ value, target: [sign, limit] }: Goal): boolean => (sign === '>=' ? value >= limit : value <= limit);

/** One line. */
export function lineOf(outcome: Outcome): string {
  const head = `${String(outcome.number).padStart(2)}  ${outcome.name.padEnd(56)}`;
  if ('skipped' in outcome) return `${head} skipped: ${outcome.skipped}`;
  const { value, target, detail = '', why } = outcome;
  const met = isMet(outcome);
  const said = !met && why ? `  (${why})` : '';
  return `${head} ${value.toPrecision(3).padStart(7)}  ${target[0]} ${String(target[1]).padEnd(6)} ${met ? 'reached' : 'MISSED '}  ${detail}${said}`.trimEnd();
}

/** All lines, and how many were reached. */
export function table(outcomes: Outcome[]): string {
  const goals = outcomes.filter((outcome): outcome is Goal => !('skipped' in outcome));
  const sorted = [...outcomes].sort((a, b) => a.number - b.number);
  return `${sorted.map(lineOf).join('\n')}\n${goals.filter(isMet).length} of ${goals.length} reached, ${outcomes.length - goals.length} skipped`;
}
