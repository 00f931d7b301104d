package openapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// The steps of these stories, beside those of scene.Tell:
//
//	alone                                   there is no local apiserver
//	own                                     this process serves groups, as the server "own"
//	server <name> [at <path>] <behaviour>   home is the local apiserver; at a path: elsewhere it does what it did
//	open                                    OpenAPI starts
//	unread <bool>                           whether documents of the local apiserver cannot be read
//	claimed [-]<path> …                     whether it answers for paths, with - not
//
// A server serves <gv>[/<resource>]=<description> …, says <text>, hangs, refuses, or answers status <code>.
func TestStories(t *testing.T) {
	scene.Tell(t, func(tb testing.TB) *scene.Scene {
		s, now := newStage(tb), map[string]http.HandlerFunc{} // what the servers do
		s.Show = s.show
		s.Own = map[string]func([]string){
			"alone": func([]string) {
				s.cfg.Local = nil
				s.make()
			},
			"own": func([]string) {
				s.cfg.FetchOwn = func(_ context.Context, r *http.Request) (*http.Response, error) { return s.Answer("own", r) }
				s.make()
			},
			"server": func(words []string) {
				name, h := words[0], behaviour(words[1:])
				if words[1] == "at" {
					h = only(words[2], behaviour(words[3:]), now[name])
				}
				now[name] = h
				s.Set(name, h)
			},
			"open": func([]string) { must.Run(s, s.o.Run) },
			"unread": func(words []string) {
				check.Same(s, words[0], fmt.Sprint(s.o.Unread() != nil), "the local apiserver's cannot be read")
			},
			"claimed": func(words []string) {
				for _, path := range words {
					check.Same(s, path[0] != '-', s.o.Claimed(strings.TrimPrefix(path, "-")), "%s is claimed", path)
				}
			},
		}
		return s.Scene
	})
}

func behaviour(words []string) http.HandlerFunc {
	switch words[0] {
	case "serves":
		var kinds []kind
		for _, w := range words[1:] {
			path, description, _ := strings.Cut(w, "=")
			parts := strings.Split(path, "/")
			k := define(parts[0]+"/"+parts[1], description)
			if len(parts) > 2 {
				k.name = parts[2]
			}
			kinds = append(kinds, k)
		}
		return serving(kinds...)
	case "says":
		return saying(http.StatusOK, strings.Join(words[1:], " "))
	case "hangs":
		return hanging
	case "status":
		code, _ := strconv.Atoi(words[1])
		return saying(code, "")
	}
	return nil // refuses
}

// show describes what clients see, the paths and definitions of v2, and the index of v3 with titles
// and schemas, and the status that operators see.
func (s *stage) show() string {
	s.Helper()
	var b strings.Builder
	read := func(path string) (doc object) {
		w := s.Get(path, nil)
		if w.Code != http.StatusOK {
			fmt.Fprintf(&b, "%s %d, Retry-After %s\n", path, w.Code, w.Header().Get("Retry-After"))
			return nil
		}
		must.Do(s, json.Unmarshal(w.Body.Bytes(), &doc))
		return doc
	}
	v2, v3 := read("/openapi/v2"), read("/openapi/v3")
	for _, path := range keys(v2["paths"]) {
		fmt.Fprintf(&b, "v2 %s\n", path)
	}
	for _, name := range keys(v2["definitions"]) {
		fmt.Fprintf(&b, "v2 %s: %s\n", name, v2["definitions"].(object)[name].(object)["description"])
	}
	index, _ := v3["paths"].(object)
	for _, path := range keys(index) {
		fmt.Fprintf(&b, "v3 %s", path)
		url, _ := index[path].(object)["serverRelativeURL"].(string)
		if w := s.Get(url, nil); w.Code == http.StatusOK { // others are the local apiserver's
			var doc struct{ Info, Components object }
			must.Do(s, json.Unmarshal(w.Body.Bytes(), &doc))
			fmt.Fprintf(&b, ": %s", doc.Info["title"])
			for _, name := range keys(doc.Components["schemas"]) {
				fmt.Fprintf(&b, ", %s: %s", name, doc.Components["schemas"].(object)[name].(object)["description"])
			}
		}
		b.WriteByte('\n')
	}
	for _, st := range s.o.Status() {
		fmt.Fprintf(&b, "status %s %s", st.Name, st.Reason)
		if st.Foreign != nil {
			fmt.Fprintf(&b, "foreign %s", st.Foreign)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
