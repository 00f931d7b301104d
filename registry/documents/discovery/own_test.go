package discovery

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// The groups that this process serves are listed from its own documents, also if the local
// apiserver lists them differently or not at all.
func TestOwnGroup(t *testing.T) {
	for _, local := range []string{"apiregistration.k8s.io/v1=apiservices,writes", "other.example.com/v1=others", ""} {
		inBubble(t, func(t *testing.T, s *stage) {
			want := "apiregistration.k8s.io/v1 Current apiservices\n"
			if s.alone = local == ""; !s.alone {
				s.Claim("apps/v1", "", 17800, 15)
				s.Set(scene.Home, serving(listOf(local, "apiregistration.k8s.io/v1beta1=old", "apps/v1=deployments")))
				want += "apps/v1 Current deployments\n"
			}
			s.Set("own", serving(listOf("apiregistration.k8s.io/v1=apiservices")))
			s.open(own(s, "own"))
			s.pass(5 * time.Second)
			got := s.show()
			if !strings.HasPrefix(got, want) || strings.Contains(got, "old") {
				t.Errorf("with %s:\n%s", local, got)
			}
			if n := len(s.Questions("own")); n != 1 {
				t.Errorf("this process was asked %d times", n)
			}
		})
	}
}

// own is a Config in which a server of the stage answers for this process.
func own(s *stage, server string) Config {
	return Config{Config: documents.Config{FetchOwn: func(_ context.Context, r *http.Request) (*http.Response, error) {
		return s.Answer(server, r)
	}}}
}

func TestOwnGroupMissing(t *testing.T) {
	s := newStage(t)
	s.make(own(s, "nobody"))
	if err := s.d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "reading discovery of this process itself") {
		t.Error(err)
	}
}
