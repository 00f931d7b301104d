package apiservices

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// New implements rest.Storage.
func (s *store) New() runtime.Object { return &apiregistrationv1.APIService{} }

// Destroy implements rest.Storage. Nothing outlives Run.
func (s *store) Destroy() {}

// NewList implements rest.Lister.
func (s *store) NewList() runtime.Object { return &apiregistrationv1.APIServiceList{} }

// NamespaceScoped implements rest.Scoper.
func (s *store) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (s *store) GetSingularName() string { return "apiservice" }

// Categories implements rest.CategoriesProvider.
func (s *store) Categories() []string { return []string{"api-extensions"} }

// Get implements rest.Getter. Objects are copied on their way out, because encoders write kind and version into what they are given.
func (s *store) Get(_ context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	state := s.state()
	if _, err := wanted(state, options.ResourceVersion); err != nil {
		return nil, err
	}
	o := state.get(name)
	if o == nil {
		return nil, apierrors.NewNotFound(apiregistrationv1.Resource("apiservices"), name)
	}
	return o.DeepCopy(), nil
}

// predicateOf is what a list or a watch is about.
func predicateOf(o *metainternalversion.ListOptions) storage.SelectionPredicate {
	p := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()}
	if o.LabelSelector != nil {
		p.Label = o.LabelSelector
	}
	if o.FieldSelector != nil {
		p.Field = o.FieldSelector
	}
	return p
}

func matches(p storage.SelectionPredicate, o *apiregistrationv1.APIService) bool {
	return p.MatchesObjectAttributes(o.Labels, fields.Set{"metadata.name": o.Name})
}

// List implements rest.Lister.
func (s *store) List(_ context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	state := s.state()
	wants, after, at := predicateOf(options), "", state.revision
	if options.Continue != "" {
		var err error
		if after, at, err = readPage(options.Continue, state); err != nil {
			return nil, err
		}
	} else if revision, err := wanted(state, options.ResourceVersion); err != nil {
		return nil, err
	} else if options.ResourceVersionMatch == metav1.ResourceVersionMatchExact && revision != state.revision {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("the requested resource version is not the current one: %d (%d)", revision, state.revision))
	}
	list := &apiregistrationv1.APIServiceList{Items: []apiregistrationv1.APIService{}}
	// Every page has the revision of the first: a watch from there tells what later pages already show once more, and misses nothing.
	list.ResourceVersion = strconv.FormatUint(at, 10)
	from, listed := slices.BinarySearchFunc(state.objects, after, compareName)
	if listed {
		from++
	}
	for i, o := range state.objects[from:] {
		if !matches(wants, o) {
			continue
		}
		if options.Limit > 0 && int64(len(list.Items)) == options.Limit {
			var err error
			if list.Continue, err = storage.EncodeContinue("/"+list.Items[len(list.Items)-1].Name, "/", int64(at)); err != nil { //nolint:gosec // a time in milliseconds, times 2²⁰
				return nil, apierrors.NewInternalError(err)
			}
			if wants.Empty() {
				rest := int64(len(state.objects) - from - i)
				list.RemainingItemCount = &rest
			}
			break
		}
		list.Items = append(list.Items, *o.DeepCopy())
	}
	return list, nil
}

// readPage reads a continue token: after which name to go on, and the revision of the first page.
func readPage(token string, state *state) (after string, revision uint64, err error) {
	key, at, err := storage.DecodeContinue(token, "/")
	if err != nil {
		return "", 0, apierrors.NewBadRequest(err.Error())
	}
	revision = uint64(at) //nolint:gosec // a negative one is none of ours, and too new
	if revision < state.floor || revision > state.revision {
		return "", 0, apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result")
	}
	return strings.TrimPrefix(key, "/"), revision, nil
}

// wanted reads the resourceVersion of a request for what is current. One from the future belongs to another replica or an earlier life of this
// one; the client is told in the way that makes client-go start afresh.
func wanted(state *state, text string) (uint64, error) {
	if text == "" || text == "0" {
		return state.revision, nil
	}
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q", text))
	}
	if revision > state.revision {
		return 0, tooLarge(revision, state.revision)
	}
	return revision, nil
}

// tooLarge is the error of k8s.io/apiserver/pkg/storage for a resource version from the future, whose cause client-go looks for. Unlike there
// no Retry-After comes with it, which client-go would obey ten times over: this replica will never have seen another one's revision.
func tooLarge(revision, current uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", revision, current), 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
	}}
	return err
}

// statusStore is the subresource status, which is only ever read.
type statusStore struct{ store *store }

// New implements rest.Storage.
func (s statusStore) New() runtime.Object { return s.store.New() }

// Destroy implements rest.Storage.
func (s statusStore) Destroy() {}

// Get implements rest.Getter.
func (s statusStore) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// ConvertToTable implements rest.TableConvertor.
func (s statusStore) ConvertToTable(ctx context.Context, o, options runtime.Object) (*metav1.Table, error) {
	return s.store.ConvertToTable(ctx, o, options)
}
