package memo

import (
	"fmt"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// book is a cache of numbers by name.
type book struct{ *Cache[string, int] }

func newBook(cfg Config) *book { return &book{New[string, int](cfg)} }

func (b *book) get(name string) (v int, ok bool) {
	e := b.Get(name, time.Time{})
	if e == nil {
		return 0, false
	}
	return e.Value, true
}

func (b *book) put(name string, v int, forSo time.Duration) { b.putAsOf(0, name, v, forSo) }

func (b *book) putAsOf(generation uint64, name string, v int, forSo time.Duration) {
	b.Put(&Entry[string, int]{Key: name, Value: v, Size: len(name), Until: time.Now().Add(forSo), Generation: generation})
}

// together returns n names of the second set.
func (b *book) together(n int) (names []string) {
	for i := 0; len(names) < n; i++ {
		if name := fmt.Sprint(i); b.set(name) == b.at(1) {
			names = append(names, name)
		}
	}
	return names
}

// kept counts the entries and their bytes.
func (b *book) kept() (n, size int) {
	for i := range b.sets {
		for j := range b.sets[i] {
			if e := b.sets[i][j].Load(); e != nil {
				n++
				size += len(e.Key)
			}
		}
	}
	return n, size
}

func TestCacheBytesAreBounded(t *testing.T) {
	const most = 1 << 20
	b := newBook(Config{Entries: 1 << 14, Bytes: most})
	name := func(i int) string { return fmt.Sprintf("%0900d", i) }
	for i := range 4000 {
		b.put(name(i), i, time.Hour)
	}
	found := 0
	for i := range 4000 {
		v, ok := b.get(name(i))
		check.Same(t, true, !ok || v == i, "%d has the value of %d", i, v)
		if ok {
			found++
		}
	}
	n, size := b.kept()
	check.Same(t, true, n == found && size == b.bytes && size <= most && size >= most/2, "%d entries, %d found; %d bytes of which %d are counted", n, found, size, b.bytes)
	check.Same(t, "3999 true", fmt.Sprint(b.get(name(3999))), "the newest")
	shared := newBook(Config{Entries: 64 * Ways, Bytes: 1000})
	for i := range 20 { // ten small ones, and large ones that have no room but each other's
		shared.put(fmt.Sprintf("%0*d", 50+350*(i/10), i), i, time.Hour)
	}
	for i := range 10 {
		check.Same(t, fmt.Sprint(i, true), fmt.Sprint(shared.get(fmt.Sprintf("%050d", i))), "a small one among large ones")
	}
	full := newBook(Config{Bytes: 8})
	full.put("half", 1, time.Hour)
	full.put("rest", 1, time.Hour)
	check.Same(t, "2 8", fmt.Sprint(full.kept()), "entries, and their bytes")
	for i := range 4000 {
		b.Drop(name(i))
	}
	check.Same(t, "0 0", fmt.Sprint(b.kept()), "entries of an empty cache, and their bytes")
	check.Same(t, 0, b.bytes, "bytes that are counted of an empty cache")
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1000 << 20))
	small := newBook(Config{Entries: 1 << 10, Bytes: 1 << 30})
	for i := range 200 {
		small.Put(&Entry[string, int]{Key: fmt.Sprint(i), Size: 1 << 20, Until: time.Now().Add(time.Hour)})
	}
	check.Same(t, true, small.bytes <= 100<<20 && small.bytes > 50<<20, "%d bytes, of a limit of 1000 MiB", small.bytes)
}

// In a set whose entries were all used lately, any place will do.
func TestUsedSet(t *testing.T) {
	b := newBook(Config{Bytes: 1 << 10})
	for i := range 4 * Ways {
		b.put(fmt.Sprint(i), i, time.Hour)
		for j := range i + 1 {
			b.get(fmt.Sprint(j))
		}
	}
	n, _ := b.kept()
	check.Same(t, Ways, n, "entries")
}

// The number of entries is bounded. The cache of proxy/authn and authz holds 100,000: few are
// dropped before they expire.
func TestCacheEntriesAreBounded(t *testing.T) {
	for _, tt := range []struct{ most, n, least int }{{1 << 10, 1 << 10 * 5 / 4, 1 << 9}, {1 << 18, 100_000, 99_000}} {
		b := newBook(Config{Entries: tt.most, Bytes: 160 << 20})
		for i := range tt.n {
			b.put(fmt.Sprint(i), i, time.Hour)
		}
		n, size := b.kept()
		check.Same(t, true, n <= tt.most && n >= tt.least && size == b.bytes, "%d of %d entries, %d bytes of which %d are counted", n, tt.n, size, b.bytes)
		for i := range tt.n {
			b.put(fmt.Sprint(i%10), i, time.Hour) // replaces the former value
		}
		after, size := b.kept()
		check.Same(t, true, after <= n+10 && size == b.bytes, "%d entries, and after replacing ten of them %d, %d bytes of which %d are counted", n, after, size, b.bytes)
	}
}

// In a full set, used entries stay and unused ones are dropped. Expired entries are dropped, even
// if they are not read again.
func TestCacheForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(Config{Bytes: 1 << 20})
		b.put("used", 1, time.Minute)
		for i := range 10 * Ways {
			check.Same(t, "1 true", fmt.Sprint(b.get("used")), "used, before the %d-th", i)
			b.put(fmt.Sprint(i), i, time.Hour)
		}
		time.Sleep(2 * time.Hour)
		check.Same(t, "0 false", fmt.Sprint(b.get("used")), "used, after it expired")
		b.put("used", 1, time.Minute)
		n, _ := b.kept()
		check.Same(t, 1, n, "entries, of which one has not expired")
		b = newBook(Config{Entries: 64 * Ways, Bytes: 1000})
		for i := range 24 {
			b.put(fmt.Sprintf("%040d", i), i, time.Minute)
		}
		time.Sleep(time.Hour)
		b.put(fmt.Sprintf("%0100d", 1), 1, time.Minute)
		check.Same(t, "1 true", fmt.Sprint(b.get(fmt.Sprintf("%0100d", 1))), "a large one, after small ones that have expired")
	})
}

// A new entry replaces an expired one, or else the least recently used one, in any place of its
// set. Keys with the same set have an entry each.
func TestCachePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, over := range []bool{true, false} {
			for going := range Ways {
				b := newBook(Config{Entries: 2 * Ways, Bytes: 1 << 20})
				names := b.together(Ways + 1) // the last Put sweeps the other set
				for i := range Ways {
					b.put(names[i], i, time.Hour)
				}
				for i := range Ways {
					b.get(names[i]) // long ago: two writers have looked for a place since, beginning at either end
				}
				b.put(names[0], 0, time.Hour)
				b.put(names[Ways-1], Ways-1, time.Hour)
				if over {
					b.put(names[going], going, time.Second)
					b.put(names[going], going, time.Second)
				}
				for i := range Ways {
					if over == (i == going) {
						b.get(names[i])
					}
				}
				time.Sleep(2 * time.Second)
				b.put(names[Ways], Ways, time.Hour)
				b.Drop(names[(going+1)%Ways])
				for i := range Ways {
					v, ok := b.get(names[i])
					check.Same(t, true, ok != (i == going || i == (going+1)%Ways) && (!ok || v == i), "over %v, going %d: %d is there: %v, %d", over, going, i, ok, v)
				}
			}
		}
	})
}

// An entry is valid only in the generation in which its value was requested.
func TestCacheGenerations(t *testing.T) {
	now := uint64(7)
	b := newBook(Config{Entries: 1 << 10, Bytes: 1 << 20, Generation: func() uint64 { return now }})
	for _, tt := range []struct {
		name     string
		asked    uint64
		put, get uint64
		want     bool
	}{
		{"the same", 7, 7, 7, true},
		{"over before the answer", 7, 8, 8, false},
		{"over since", 7, 7, 8, false},
	} {
		now = tt.put
		b.putAsOf(tt.asked, tt.name, 1, time.Hour)
		now = tt.get
		_, ok := b.get(tt.name)
		check.Same(t, tt.want, ok, "%s: found", tt.name)
	}
	now = 9
	for range len(b.sets) {
		b.putAsOf(9, "alive", 1, time.Hour)
	}
	n, _ := b.kept()
	check.Same(t, 1, n, "entries, of which one is of this generation")
}

func TestGetAllocatesNothing(t *testing.T) {
	b := newBook(Config{Entries: 1 << 10, Bytes: 1 << 20})
	b.put("known", 1, time.Hour)
	name := fmt.Sprint("kno", "wn")
	check.Same(t, true, b.Get(name, time.Time{}) != nil, "found")
	check.Same(t, 0, testing.AllocsPerRun(100, func() { b.Get(name, time.Time{}) }), "allocations")
}
