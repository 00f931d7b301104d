// Package memo caches answers for a limited time, bounded in entries and bytes.
//
// Reads take no lock and do not allocate. Writes take one mutex for a few sets of eight entries;
// there is one write for each answer from elsewhere.
//
// The caller hashes and compares keys: a key that is passed to a func field would be allocated in
// each request.
package memo
