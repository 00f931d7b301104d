package openapi

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ownGroupVersion returns the group-version that this process serves itself with the dir: registry.
func ownGroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "apiregistration.k8s.io", Version: "v1"}
}

// ofOwn reports whether a path of the local apiserver's index belongs to that group.
func ofOwn(path string) bool {
	rest, ok := strings.CutPrefix(path, "apis/"+ownGroupVersion().Group)
	return ok && (rest == "" || rest[0] == '/')
}

// askOwn reads the documents of what this process serves itself, if anything.
func (o *OpenAPI) askOwn(ctx context.Context) error {
	if o.cfg.FetchOwn == nil {
		return nil
	}
	q := o.question(o.cfg.FetchOwn, &state{}, ownGroupVersion())
	index, err := q.index(ctx)
	if err == nil && index != nil {
		err = q.documents(ctx, index)
	}
	if err == nil {
		err = q.spec(ctx)
	}
	own := &q.now[0]
	if err == nil && (own.v2 == nil || own.v3 == nil) {
		err = fmt.Errorf("there is none of %s", ownGroupVersion())
	}
	if err != nil {
		return fmt.Errorf("reading OpenAPI of this process itself: %w", err)
	}
	o.own = own
	return nil
}
