package authz

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

// dice makes questions from bytes, with few letters, so that nearly equal ones are frequent.
type dice struct{ bytes []byte }

func (d *dice) roll(n int) int {
	if len(d.bytes) == 0 {
		return 0
	}
	b := d.bytes[0]
	d.bytes = d.bytes[1:]
	return int(b) % n
}

func (d *dice) word() string {
	w := make([]byte, d.roll(4))
	for i := range w {
		w[i] = "ab\x00\x01/=,"[d.roll(7)]
	}
	return string(w)
}

func (d *dice) words() []string {
	list := make([]string, d.roll(4))
	for i := range list {
		list[i] = d.word()
	}
	return list
}

func (d *dice) question() *Attributes {
	u := &user.DefaultInfo{Name: d.word(), UID: d.word(), Groups: d.words(), Extra: map[string][]string{}}
	for range d.roll(3) {
		u.Extra[d.word()] = d.words()
	}
	return &Attributes{
		User: u, Verb: d.word(), ResourceRequest: d.roll(2) == 1, Group: d.word(), Version: d.word(), Resource: d.word(), Subresource: d.word(), Namespace: d.word(), Name: d.word(),
		Path: d.word(), FieldSelector: d.word(), LabelSelector: d.word(),
	}
}

// spelled formats all of a question: two questions are the same if their texts are.
func spelled(a *Attributes) string {
	extra := ""
	for _, k := range slices.Sorted(maps.Keys(a.User.GetExtra())) {
		extra += fmt.Sprintf("%q=%q;", k, a.User.GetExtra()[k])
	}
	if a.ResourceRequest {
		return fmt.Sprintf("resource %q %q %q %q %q %q %q %q %q as %q %q %q %s", a.Verb, a.Group, a.Version, a.Resource, a.Subresource, a.Namespace, a.Name, a.FieldSelector, a.LabelSelector,
			a.User.GetName(), a.User.GetUID(), a.User.GetGroups(), extra)
	}
	return fmt.Sprintf("path %q %q as %q %q %q %s", a.Verb, a.Path, a.User.GetName(), a.User.GetUID(), a.User.GetGroups(), extra)
}

// Two questions share a key, and a cached answer, if and only if they are the same, even if all
// hashes collide.
func FuzzKey(f *testing.F) {
	f.Add([]byte{}, []byte{1})
	f.Add([]byte{2, 0, 1, 0, 2, 1, 0, 1, 1}, []byte{1, 0, 0, 3, 0, 1, 2, 1})
	f.Add([]byte{0, 0, 2, 1, 2, 1, 3, 1, 1, 2, 2, 1, 4}, []byte{0, 0, 1, 2, 2, 3, 1, 1, 2, 2, 1, 4})
	f.Fuzz(func(t *testing.T, one, other []byte) {
		a, b := (&dice{one}).question(), (&dice{other}).question()
		same := spelled(a) == spelled(b)
		if a.equal(b) != same || (a.key() == b.key()) != same {
			t.Errorf("equal %v, keys equal %v:\n%s\n%s", a.equal(b), a.key() == b.key(), spelled(a), spelled(b))
		}
		for _, collide := range []bool{false, true} {
			c := newCache(func() uint64 { return 0 })
			if collide {
				c.narrow = func(uint64) uint64 { return 7 }
			}
			c.put(a.clone(), Decision{Allowed: true}, time.Now().Add(time.Hour), 0)
			if _, hit := c.get(b); hit != same {
				t.Errorf("answered %v (colliding %v):\n%s\n%s", hit, collide, spelled(a), spelled(b))
			}
		}
	})
}
