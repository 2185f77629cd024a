import type { ToolContext } from '../src/tools.ts';

export const PERSON: object;
export const BEHAVIOUR: { [name: string]: (args: any, context: ToolContext) => unknown };
export function manyTools(): { name: string; title: string; inputSchema: object }[];
