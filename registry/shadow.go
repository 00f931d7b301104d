package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/registry/latest"
)

const (
	// shadowInterval is for how long a CustomResourceDefinition may be hidden before it is reported. A question is a list of names from the apiserver's memory.
	shadowInterval = time.Minute
	// shadowPause bounds how often new claims make us ask: tables may follow each other within milliseconds.
	shadowPause = time.Second
	// shadowTimeout is far more than the list of the names of a thousand definitions takes.
	shadowTimeout = 10 * time.Second
	// mostDefinitions bounds how many definitions are read whole. One group with more of them is not known.
	mostDefinitions = 500
)

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// shadows finds the CustomResourceDefinitions that an APIService hides: in a cluster no two APIServices can claim one group-version, since it is their name, but
// a definition and an APIService can. The objects are still there then, and nobody can reach them.
type shadows struct {
	client rest.Interface
	table  func() *Table
	to     *changes
	// failed is told of each failure that is not the last one again.
	failed func(error)
	last   string
}

// run asks whenever the claims have changed, and from time to time, until ctx ends. It is a reader of the table like any other.
func (s *shadows) run(ctx context.Context) error {
	var asked []schema.GroupVersion
	var due time.Time // to ask again though the claims are the same
	wake := time.NewTimer(shadowInterval)
	defer wake.Stop()
	for t := range latest.Of(ctx, s.table, wake.C) {
		if claimed := t.claimed(); t.complete && (!time.Now().Before(due) || !slices.Equal(claimed, asked)) {
			if s.ask(ctx, claimed) {
				asked = claimed
			}
			due = time.Now().Add(shadowInterval)
			wake.Reset(shadowInterval)
		}
		select {
		case <-time.After(shadowPause):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// claimed are the group-versions that remotes claim, in the table's order.
func (t *Table) claimed() []schema.GroupVersion {
	var out []schema.GroupVersion
	for _, e := range t.entries {
		if !e.Local() {
			out = append(out, e.GroupVersion)
		}
	}
	return out
}

// ask finds out about all claims and tells the writer. False: it has failed, and what was known stays.
func (s *shadows) ask(ctx context.Context, claimed []schema.GroupVersion) bool {
	within, cancel := context.WithTimeout(ctx, shadowTimeout)
	defer cancel()
	found, err := s.find(within, claimed)
	if err != nil {
		if text := err.Error(); ctx.Err() == nil && text != s.last {
			s.last = text
			s.failed(err)
		}
		return false
	}
	s.last = ""
	s.to.shadow(found)
	return true
}

// find returns the name of the definition that serves each of the claimed group-versions.
func (s *shadows) find(ctx context.Context, claimed []schema.GroupVersion) (map[schema.GroupVersion]string, error) {
	groups := make(map[string]bool)
	for _, gv := range claimed {
		groups[gv.Group] = true
	}
	if len(groups) == 0 {
		return nil, nil //nolint:nilnil // nothing is hidden
	}
	var list metav1.PartialObjectMetadataList
	// Names alone, of whatever age: a thousand definitions whole would be 20 MB.
	err := s.get(ctx, definitions, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", &list)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // an apiserver without definitions
	}
	if err != nil {
		return nil, err
	}
	found := make(map[schema.GroupVersion]string)
	read := 0
	for i := range list.Items {
		name := list.Items[i].Name
		if _, group, _ := strings.Cut(name, "."); !groups[group] || read == mostDefinitions {
			continue
		}
		read++
		if err := s.read(ctx, name, found); err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	maps.DeleteFunc(found, func(gv schema.GroupVersion, _ string) bool { return !slices.Contains(claimed, gv) })
	return found, nil
}

// read notes what a definition serves. The first in the order of names stands for all of a group-version.
func (s *shadows) read(ctx context.Context, name string, found map[schema.GroupVersion]string) error {
	var definition struct {
		Spec struct {
			Group    string `json:"group"`
			Versions []struct {
				Name   string `json:"name"`
				Served bool   `json:"served"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := s.get(ctx, definitions+"/"+name, "application/json", &definition); err != nil {
		return err
	}
	for _, v := range definition.Spec.Versions {
		gv := schema.GroupVersion{Group: definition.Spec.Group, Version: v.Name}
		if old := found[gv]; v.Served && (old == "" || name < old) {
			found[gv] = name
		}
	}
	return nil
}

func (s *shadows) get(ctx context.Context, path, accept string, into any) error {
	result := s.client.Get().AbsPath(path).Param("resourceVersion", "0").SetHeader("Accept", accept).Do(ctx)
	if err := result.Error(); err != nil { // DoRaw would say "unknown" whatever the apiserver says
		return fmt.Errorf("reading definitions of custom resources: %w", err)
	}
	data, _ := result.Raw()
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading definitions of custom resources: %w", err)
	}
	return nil
}
