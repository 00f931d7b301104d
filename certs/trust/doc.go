// Package trust decides, for each APIService's backend, which certificates its servers may present.
//
// A Trust follows the registry's table. For every remote entry it keeps one immutable view of what is trusted now: the roots of the caBundle (or of the ConfigMap that
// the annotation fairlead.dev/ca-from names, or the system's), the name to verify, and for a while the roots that were replaced. TLS gives a client
// configuration whose verification reads that view at the moment of the handshake; Guard watches an open connection and says when its chain stops verifying.
//
// The rules of a rotation, in the order in which they are applied:
//
//   - New handshakes verify against the new roots at once.
//   - A chain that only the replaced roots verify is still accepted, for at most the overlap (a minute by default), and only until some endpoint has shown a chain that
//     the new roots verify: then the old ones are of no use but to a thief.
//   - Only a bundle replaced as a whole overlaps. A CA dropped from a bundle that keeps others was dropped on purpose and is distrusted at once. A CA is its subject and its
//     key, so one that was merely renewed counts as kept.
//   - A bundle without one readable certificate is a fault (InvalidCABundle); the last good roots stay for the overlap, as after a replacement.
//   - Roots never overlap with "verify nothing": leaving insecureSkipTLSVerify takes effect at once.
//
// The concurrency rule: views are immutable and read without a lock; each backend's mutex guards its transitions and is never held over I/O. Every handshake is a full
// one: no session is ever resumed, because a resumed one shows the certificates of an earlier handshake and not what the endpoint holds now.
//
// What this package is not: it dials nothing, and reads no file and no object; the ConfigMaps come through Config.Watch.
package trust
