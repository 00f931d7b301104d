// Package trust decides, for each APIService's backend, which certificates its servers may present.
//
// A Trust follows the registry's table. For every remote entry it keeps one immutable view of the
// current trust: the roots of the caBundle (or of the ConfigMap in the annotation
// fairlead.dev/ca-from, or the system's), the name to verify, and for a while the replaced roots.
// TLS returns a client configuration whose verification reads that view at the moment of the
// handshake. Guard watches an open connection and signals when its chain is no longer valid.
//
// The rules of a rotation, in the order in which they are applied:
//
//   - New handshakes verify against the new roots at once.
//   - A chain that only the replaced roots verify is still accepted, for at most the overlap (a minute by default), and only until some endpoint has presented a chain that
//     the new roots verify: then only an attacker still needs the old ones.
//   - Only a bundle replaced as a whole overlaps. If a CA is dropped from a bundle that keeps others, that is on purpose: it is distrusted at once. A CA is identified by subject
//     and key, so a renewed CA counts as kept.
//   - A bundle without one readable certificate is a fault (InvalidCABundle); the last good roots stay for the overlap, as after a replacement.
//   - Roots never overlap with "verify nothing": leaving insecureSkipTLSVerify takes effect at once.
//
// The concurrency rule: views are immutable and read without a lock; each backend's mutex guards
// its transitions and is never held over I/O. Every handshake is a full one: a resumed session
// would show the certificates of an earlier handshake and not the endpoint's current ones.
//
// This package dials nothing, and reads no file and no object: ConfigMaps come through
// Config.Watch.
package trust
