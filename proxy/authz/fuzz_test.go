package authz

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
		w[i] = "ab\x00\x01/ ,"[d.roll(7)]
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
	return &Attributes{User: u, RequestInfo: request.RequestInfo{
		Verb: d.word(), IsResourceRequest: d.roll(2) == 1, APIGroup: d.word(), APIVersion: d.word(), Resource: d.word(), Subresource: d.word(), Namespace: d.word(), Name: d.word(),
		Path: d.word(), FieldSelector: d.word(), LabelSelector: d.word(),
	}}
}

// spelled formats all that is asked: two questions are the same if their texts are.
func spelled(a *Attributes) string {
	extra := ""
	for _, k := range slices.Sorted(maps.Keys(a.User.GetExtra())) {
		extra += fmt.Sprintf("%q=%q;", k, a.User.GetExtra()[k])
	}
	text := fmt.Sprintf("%q %q %q %s asks for %q", a.User.GetName(), a.User.GetUID(), a.User.GetGroups(), extra, a.Verb)
	if !a.IsResourceRequest {
		return fmt.Sprintf("%s path %q", text, a.Path)
	}
	return fmt.Sprintf("%s %q %q %q %q %q %q %q %q", text, a.APIGroup, a.APIVersion, a.Resource, a.Subresource, a.Namespace, a.Name, a.FieldSelector, a.LabelSelector)
}

// Two questions share a key, and a cached answer, if and only if they are the same.
func FuzzKey(f *testing.F) {
	// A user, its groups and extra; then the verb, and a resource or a path. What differs in one
	// byte differs in a letter, or in where a word or a list ends.
	words := func(n int) []byte { return bytes.Repeat([]byte{1, 0}, n) }
	for _, resource := range []byte{1, 0} {
		one := slices.Concat([]byte{1, 0, 1, 0, 2, 1, 0, 1, 1, 2, 1, 0, 2, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0, resource}, words(9))
		f.Add(one, one)
		for i := range one {
			for _, by := range []byte{1, 2, 255} {
				other := slices.Clone(one)
				other[i] += by
				f.Add(one, other)
			}
		}
	}
	// The same letters, divided otherwise: groups, a version and its group, a group and a path, a verb and a group.
	f.Add([]byte{0, 0, 2, 1, 0, 1, 1}, []byte{0, 0, 1, 2, 0, 1})
	f.Add([]byte{0, 0, 2, 1, 0, 1, 1}, []byte{0, 0, 1, 3, 0, 5, 1})
	f.Add([]byte{0, 0, 0, 0, 0, 1, 1, 0, 1, 1}, []byte{0, 0, 0, 0, 0, 1, 2, 0, 1, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 1, 1, 0}, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0})
	f.Add([]byte{0, 0, 0, 0, 3, 0, 5, 1, 1}, []byte{0, 0, 0, 0, 1, 0, 1, 2, 1, 5})
	f.Add([]byte("0"), []byte{128, 0, 255}) // nothing at all, and three empty groups
	generation := uint64(0)
	c := newCache(func() uint64 { return generation })
	f.Fuzz(func(t *testing.T, one, other []byte) {
		a, b := (&dice{one}).question(), (&dice{other}).question()
		text, otherText := spelled(a), spelled(b)
		same := text == otherText
		check.Same(t, same, a.Equal(b), "equal:\n%s\n%s", text, otherText)
		generation++ // forgets what other questions have left
		c.put(string(a.appendKey(nil)), Decision{Allowed: true}, time.Now().Add(time.Hour), generation)
		_, hit := c.get(b)
		check.Same(t, same, hit, "answered:\n%s\n%s", text, otherText)
	})
}
