/** What a caller computes may be undefined: options take that for absent, all but the one where it would be taken amiss. */
import type * as main from 'technocore-rpc';
import type * as bridge from 'technocore-rpc/bridge';
import type * as local from 'technocore-rpc/local';
import type * as parley from 'technocore-rpc/parley';

/** The members of options that refuse undefined. What has no names of its own, or a member that it needs, is not options. */
type Refused<O> = O extends object
  ? string extends keyof O
    ? never
    : Partial<O> extends O
      ? { [K in keyof O]-?: undefined extends Required<O>[K] ? never : K }[keyof O]
      : never
  : never;
type Last<Args extends unknown[]> = Required<Args> extends [...unknown[], infer Arg] ? Arg : never;
/** Those of the last arguments of all functions and constructors of a module. */
type RefusedIn<Module> = {
  [K in keyof Module]: Module[K] extends (...args: infer Args) => unknown
    ? Refused<Last<Args>>
    : Module[K] extends new (
          ...args: infer Args
        ) => unknown
      ? Refused<Last<Args>>
      : never;
}[keyof Module];

/** Those in options that stand elsewhere. */
type RefusedElsewhere =
  | Refused<main.A2AStoreLimits>
  | Refused<main.InputHandlers>
  | Refused<main.LedgerLimits>
  | Refused<main.McpFilter>
  | Refused<main.ReadOptions>
  | Refused<main.ReplyLimits>
  | Refused<main.SendOptions>
  | Refused<main.ToolOptions>
  | Refused<NonNullable<Parameters<typeof main.publishIdentity>[1]>>
  | Refused<parley.Abortable>
  | Refused<Omit<parley.HandshakeOptions, 'identity' | 'prologue' | 'psk'>>
  | Refused<Omit<bridge.RoomTransportOptions, 'replyTo'>>;

type All = RefusedIn<typeof main> | RefusedIn<typeof parley> | RefusedIn<typeof local> | RefusedIn<typeof bridge>;
// A condition that is undefined would be none, and the write would overwrite whatever is there.
export const refused: Record<Exclude<All | RefusedElsewhere, 'if'>, never> = {};
export const condition: All = 'if';
