package apiservices

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// refuse answers a request with a method that is not allowed.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, group bool) {
	if !group {
		s.fail(w, r, notFound())
		return
	}
	err := apierrors.NewMethodNotSupported(apiregistrationv1.Resource("apiservices"), strings.ToLower(r.Method))
	if s.store != nil {
		err.ErrStatus.Message = "APIServices are read from a directory (--registry=dir:) and cannot be changed here: change the manifest"
	}
	w.Header().Set("Allow", "GET, HEAD") // RFC 9110 §15.5.6
	s.fail(w, r, err)
}

// fail answers with a Status in the client's form.
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
