// Package hostile attacks the real fairlead: floods and slow peers on both ports, over both
// protocols, smuggled requests, malicious backends, forged identities, and a machine that runs out
// of resources. Each case prints its figures; docs/evidence quotes them.
//
// Everything needs the build tag e2e (make hostile). Measurements compare the same clients with and
// without the attack in one run.
package hostile
