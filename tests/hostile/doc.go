// Package hostile attacks the real fairlead: floods and slow peers, smuggled requests, malicious backends, mixed-up
// users, and readers that fill a small container. Each case prints its figures; docs/evidence quotes them.
//
// Everything needs the build tag e2e (make hostile). Measurements compare the same clients with and
// without the attack in one run.
package hostile
