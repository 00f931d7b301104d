// Package hostile attacks the real fairlead: floods and slow peers on both ports, over both
// protocols, smuggled requests, backends that attack, forged identities, and a machine that runs
// out of what a process needs. Each case prints its figures; docs/evidence quotes them.
//
// Everything runs with the build tag e2e (make hostile). What is measured is compared with the same
// clients undisturbed in the same run.
package hostile
