package apiservices

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/apiservices/etcd"
)

// flushing adds http.Flusher, which k8s.io/apiserver needs to stream a watch, and its own wrappers keep only together
// with http.CloseNotifier (pkg/endpoints/responsewriter). That is deprecated: few writers except net/http's have it.
type flushing struct{ http.ResponseWriter }

// gone is the text of the error that handlers get, and log, if they cannot write to a client.
const gone = "writing to a client of APIServices"

// ClientGone reports whether an error logged by k8s.io/apiserver is about a client that left before its response's end.
func ClientGone(err error) bool { return strings.Contains(err.Error(), gone) } // some wrap only the text

func (w *flushing) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	if err != nil {
		err = fmt.Errorf(gone+": %w", err)
	}
	return n, err
}

func (w *flushing) Flush() {
	_ = http.NewResponseController(w.ResponseWriter).Flush() // a writer that cannot flush has nothing buffered
}

// CloseNotify only has to be there: nothing calls it.
func (w *flushing) CloseNotify() <-chan bool { return nil }

// Hijack is for a watch by WebSocket.
func (w *flushing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

func (w *flushing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, s.codecs, apiregistrationv1.SchemeGroupVersion, w, r)
}

func notFound() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false)
}

// unread is the error until the directory has been read: clients would take a 404 as "gone".
func unread() error {
	err := apierrors.NewServiceUnavailable("the directory of APIServices has not been read yet")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// protection rejects a remote that claims a protected group, which no table routes, unless it is being deleted.
type protection struct {
	*admission.Handler
	*registry.Options
}

var _ admission.ValidationInterface = protection{}

func (p protection) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	o, ok := a.GetObject().(*apiregistration.APIService)
	if !ok || a.GetSubresource() != "" || o.DeletionTimestamp != nil || !p.Protects(o.Spec.Group) {
		return nil
	}
	if _, byURL := o.Annotations[etcd.URLAnnotation]; !byURL && o.Spec.Service == nil {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf(
		"the group %q is protected: no extension server may claim it (--protected-groups)", o.Spec.Group))
}
