package certs

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/internal/notify"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// followed is a value that is read from files, or from the authentication ConfigMap, as a whole or not at all.
type followed struct {
	use    string
	source string // names the origin in logs, metrics and status, and distinguishes two of the same use
	// files are the paths to read, perhaps symlinks, or below one, as in a Kubernetes volume. Nil: it is delivered.
	files []string
	// take parses the data, in the order of the files, and puts it in force, unless it is faulty.
	take func(data [][]byte) error
	// whole takes all of the ConfigMap instead. err wraps fs.ErrNotExist when there is none.
	whole func(data map[string][]byte, err error) error

	// held returns the certificates in force: of a pair, the chain. Nil means that it has none.
	held func() []*x509.Certificate

	mu      sync.Mutex        // guards the fields below. Only the goroutine that reads the source writes them
	digest  [sha256.Size]byte // of the last data taken or refused; zero means none yet
	refused bool
	read    time.Time
	changed time.Time
	err     error // of the last read: why it was refused, or why nothing could be read
}

// load reads the files. changed tells whether the outcome is new.
func (f *followed) load() (changed bool, err error) {
	var data [][]byte
	for _, file := range f.files {
		part, err := readFile(file)
		if err != nil {
			return f.offer(nil, err, nil)
		}
		data = append(data, part)
	}
	return f.offer(data, nil, func() error { return f.take(data) })
}

func (f *followed) deliver(data map[string][]byte, err error) (changed bool, _ error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.offer(nil, err, nil)
	}
	all := [][]byte{fmt.Append(nil, err)}
	for _, k := range slices.Sorted(maps.Keys(data)) {
		all = append(all, []byte(k), data[k])
	}
	return f.offer(all, nil, func() error { return f.whole(data, err) })
}

// offer calls take, unless data is what is in force: a file that comes back unchanged is no change. Refused data is
// taken again: a file may name another one that was still missing. With an error, nothing could be read.
func (f *followed) offer(data [][]byte, err error, take func() error) (changed bool, _ error) {
	h := sha256.New()
	for _, d := range data {
		_, _ = fmt.Fprintf(h, "%d:", len(d)) // writing to a hash never fails
		h.Write(d)
	}
	sum, unread := [sha256.Size]byte(h.Sum(nil)), err != nil
	known := unread || f.digest == sum
	inForce := known && !f.refused
	if !unread && !inForce {
		err = take()
	}
	if err != nil {
		err = fmt.Errorf("reading %s: %w", f.use, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed = !known || fmt.Sprint(f.err) != fmt.Sprint(err)
	if f.err, f.read = err, time.Now(); unread {
		return changed, err
	}
	f.digest, f.refused = sum, err != nil
	if !inForce && err == nil {
		f.changed = f.read
	}
	return changed, err
}

// readFile reads a regular file, as large as a bundle may be: a FIFO would block for ever, a device has no end.
func readFile(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil { // stat first: opening a FIFO already blocks
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("opening %s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, bundle.Max+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > bundle.Max:
		return nil, fmt.Errorf("reading %s: more than %d bytes", path, bundle.Max)
	case len(data) == 0:
		return nil, fmt.Errorf("reading %s: the file is empty", path)
	}
	return data, nil
}

// Status describes one followed value: what is in force and how the last read ended.
type Status struct {
	// Use is the purpose: serving, sni, proxy-client, client-ca, requestheader-ca, authentication-configmap, a File's.
	Use     string    `json:"use"`
	Source  string    `json:"source"`           // where it comes from
	Read    time.Time `json:"read,omitzero"`    // when it was last read. Zero means never
	Changed time.Time `json:"changed,omitzero"` // when it was last put in force. Zero means never
	Err     string    `json:"err,omitempty"`    // why the last value read is not in force. Empty means that it is
	Chain   bool      `json:"chain,omitempty"`  // all Certificates are needed. False: one of them
	// Certificates are those in force: a leaf and the intermediates above it, or the CAs of a bundle.
	Certificates []trust.Certificate `json:"certificates,omitempty"`
}

// Status describes every followed value, in a fixed order.
func (s *Store) Status() []Status {
	s.clients.mu.Lock()
	refusal := s.clients.refusal
	s.clients.mu.Unlock()
	out := make([]Status, 0, len(s.followed))
	for _, f := range s.followed {
		f.mu.Lock()
		cas := slices.Contains([]string{"client-ca", "requestheader-ca", "authentication-configmap"}, f.use)
		st := Status{Use: f.use, Source: f.source, Read: f.read, Changed: f.changed, Chain: !cas && f.held != nil}
		err := f.err
		f.mu.Unlock()
		if cas && (err == nil || errors.Is(err, errShared)) { // a later change of the other bundle may have cured that
			err = refusal
		}
		if err != nil {
			st.Err = err.Error()
		}
		if f.held != nil {
			for _, c := range f.held() {
				st.Certificates = append(st.Certificates, trust.Describe(c))
			}
		}
		out = append(out, st)
	}
	return out
}

func (s *Store) register(r prometheus.Registerer) {
	s.reloads = metric.CountBy("fairlead_certificate_reloads_total",
		"Changes of a followed key pair, bundle or file, by outcome (success, failure).", "use", "source", "outcome")
	for _, f := range s.followed {
		// At 0 from the start, so that the first failure is an increase.
		s.reloads.WithLabelValues(f.use, f.source, "success")
		s.reloads.WithLabelValues(f.use, f.source, "failure")
	}
	labels := []string{"use", "source"}
	each := append(labels, "subject", "fingerprint")
	expiry := prometheus.NewDesc("fairlead_certificate_expiration_timestamp_seconds",
		"When a certificate in force expires: each of a pair's chain, each CA of a bundle.", each, nil)
	begin := prometheus.NewDesc("fairlead_certificate_not_before_timestamp_seconds", "When it became valid.", each, nil)
	valid := prometheus.NewDesc("fairlead_certificate_reload_valid",
		"1 while the last value read is in force, 0 while the last good value is used instead.", labels, nil)
	change := prometheus.NewDesc("fairlead_certificate_change_timestamp_seconds",
		"When the value was last put in force.", labels, nil)
	gauges := func(gauge func(*prometheus.Desc, float64, ...string)) {
		type series struct{ use, source, fingerprint string }
		seen := make(map[series]bool)
		for _, st := range s.Status() {
			// A source or a certificate may be there twice: a duplicate series would fail the whole scrape.
			if key := (series{st.Use, st.Source, ""}); !seen[key] {
				seen[key] = true
				gauge(valid, metric.Number(st.Err == ""), st.Use, st.Source)
				if !st.Changed.IsZero() {
					gauge(change, float64(st.Changed.Unix()), st.Use, st.Source)
				}
			}
			for _, cert := range st.Certificates[:min(len(st.Certificates), 16)] { // a bundle may have every public CA
				if key := (series{st.Use, st.Source, cert.Fingerprint}); !seen[key] {
					seen[key] = true
					gauge(expiry, float64(cert.NotAfter.Unix()), st.Use, st.Source, cert.Subject, cert.Fingerprint)
					gauge(begin, float64(cert.NotBefore.Unix()), st.Use, st.Source, cert.Subject, cert.Fingerprint)
				}
			}
		}
	}
	metric.Register(r, s.reloads, metric.Gauges{All: []*prometheus.Desc{expiry, begin, valid, change}, Make: gauges})
}

const (
	// quiet is how long directories must be quiet before their files are read. Writers that do not rename write in
	// parts, and the certificate after the key, usually within milliseconds. The wait ends after quietAtMost.
	quiet       = 100 * time.Millisecond
	quietAtMost = time.Second
	maxLinks    = 40 // bounds the symlinks on the way to one file, as the kernel does
)

// runFiles reads the files again when their directories change, and once a minute, until ctx ends.
func (s *Store) runFiles(ctx context.Context) {
	if !slices.ContainsFunc(s.followed, func(f *followed) bool { return len(f.files) > 0 }) {
		return
	}
	w := notify.New(notify.Config{Quiet: quiet, AtMost: quietAtMost, Logger: s.logger})
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { w.Run(ctx) })
	for {
		w.Watch(func() (all []string) { // watch before reading: a change between New and this point is seen now
			for _, f := range s.followed {
				for _, path := range f.files {
					all = append(all, directories(path)...)
				}
			}
			return all
		})
		for _, f := range s.followed {
			if len(f.files) > 0 {
				s.report(f)(f.load())
			}
		}
		select {
		case <-w.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// directories returns the directories in which a change may change the file at path: its own, and
// those of the symlinks on the way. It watches directories because a replaced or deleted file takes
// its watch with it, and because in a Kubernetes volume only a symlink next to the file changes.
func directories(path string) (out []string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	for range maxLinks {
		link, target := path, ""
		for d := path; d != filepath.Dir(d); d = filepath.Dir(d) {
			if to, err := os.Readlink(d); err == nil {
				link, target = d, to // above the last one there is none
			}
		}
		// This is its real name: fsnotify identifies a watch by its path, which may later be another directory.
		dir := filepath.Dir(link)
		if !slices.Contains(out, dir) {
			out = append(out, dir)
		}
		if target == "" {
			return out
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		path = filepath.Join(target, strings.TrimPrefix(path, link))
	}
	return out
}
